"""A mistake is made where, when and how the case says, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from msgspec import structs
from torch import nn

from pipeconform.case.blocks import Linear
from pipeconform.case.build.data import make_batch
from pipeconform.case.build.mistakes import DeliberateError, MistakeMaker, changed, mistaken_batch
from pipeconform.case.case import Case, Eval, Stage, Train, Zero
from pipeconform.case.mistakes import Mistake
from tests.case.examples import small_case, with_model

RIGHT = Train(batch_size=4, num_microbatches=2)
X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def _case(*mistakes: Mistake | None, **model) -> Case:
    """A case with one training step for each."""
    steps = [structs.replace(RIGHT, mistake=one) for one in mistakes]
    return with_model(small_case(program=tuple(steps)), **model)


class _Gives(nn.Module):
    """A stage that returns what it is given."""

    def forward(self, output):
        return output


# ------------------------------------------------------------------------------------------ tensors


def test_a_matrix_is_flattened_to_a_vector_and_anything_larger_to_a_matrix() -> None:
    assert changed(X, "flattened").shape == (6,)
    assert changed(torch.zeros(2, 3, 4), "flattened").shape == (2, 12)


def test_one_more_sample_repeats_the_first_in_the_batch_dimension() -> None:
    assert changed(X, "batch").tolist() == [*X.tolist(), [1, 2, 3]]
    assert changed(X, "batch", batch_dim=1).tolist() == [[1, 2, 3, 1], [4, 5, 6, 4]]


def test_one_more_element_repeats_the_first() -> None:
    assert changed(X, "inner").tolist() == [[1, 2, 3, 1], [4, 5, 6, 4]]


@pytest.mark.parametrize(
    ("dtype", "smaller", "larger"),
    [
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.bfloat16, torch.float64),
        (torch.bfloat16, torch.float16, torch.float32),
        (torch.float16, torch.float16, torch.float32),
    ],
)
def test_every_dtype_has_a_smaller_and_a_larger_one_as_far_as_there_are(dtype, smaller, larger) -> None:
    value = X.to(dtype)

    assert changed(value, "down").dtype is smaller
    assert changed(value, "up").dtype is larger


def test_what_is_no_tensor_stands_in_the_place_of_one() -> None:
    assert changed(X, "none") is None
    assert changed(X, "object") == "no tensor"
    assert changed(X, "mapping")["output"] is X
    with pytest.raises(AssertionError, match="scarce does not change a single tensor"):
        changed(X, "scarce")


# ------------------------------------------------------------------------------------------ outputs


def _output(mistake: Mistake, output):
    case = _case(mistake)
    with MistakeMaker(case).during(case.program[0], {mistake.stage: (module := _Gives())}):
        return module(output)


OUTPUTS = {
    "a tensor": (X, "inner", lambda found: found.shape == (2, 4)),
    "None instead of a tensor is handed on in a tuple": (X, "none", lambda found: found == (None,)),
    "a text instead of a tensor": (X, "object", lambda found: found == "no tensor"),
    "a mapping instead of a tensor": (X, "mapping", lambda found: found["output"] is X),
    "two tensors instead of one": (X, "more", lambda found: type(found) is tuple and len(found) == 2),
    "no tensor instead of one": (X, "fewer", lambda found: found == ()),
    "the first of a tuple": (
        (X, X),
        "inner",
        lambda found: type(found) is tuple and [len(one[0]) for one in found] == [4, 3],
    ),
    "the first of a list": (
        [X, X],
        "inner",
        lambda found: type(found) is list and [len(one[0]) for one in found] == [4, 3],
    ),
    "None as the first of a list": ([X, X], "none", lambda found: found[0] is None and found[1] is X),
    "a longer list": ([X, X], "more", lambda found: type(found) is list and len(found) == 3),
    "a shorter tuple": ((X, X), "fewer", lambda found: type(found) is tuple and len(found) == 1),
}


@pytest.mark.parametrize(("output", "how", "right"), OUTPUTS.values(), ids=OUTPUTS)
def test_a_stage_hands_on_something_else(output, how, right) -> None:
    assert right(_output(Mistake(where="output", how=how), output))


def test_the_batch_dimension_of_an_output_is_the_models() -> None:
    mistake = Mistake(where="output", how="batch")
    case = _case(mistake, sequence=3, batch_dim=1)
    with MistakeMaker(case).during(case.program[0], {0: (module := _Gives())}):
        assert module(torch.zeros(3, 2, 3)).shape == (3, 3, 3)


# ------------------------------------------------------------------------------------------ when and where


def _shapes(
    case: Case, step: int, *, stage: int = 0, calls: int = 2, maker: MistakeMaker | None = None
) -> list[int]:
    """The width of what a stage hands on in some forwards of a step."""
    module = _Gives()
    with (maker or MistakeMaker(case)).during(case.program[step], {stage: module}):
        return [module(X).shape[-1] for _ in range(calls)]


def test_without_a_microbatch_all_of_them_are_wrong_and_with_one_only_that_one() -> None:
    def wrong(microbatch: int | None) -> list[int]:
        return _shapes(_case(Mistake(where="output", how="inner", microbatch=microbatch)), 0)

    assert wrong(None) == [4, 4]
    assert wrong(0) == [4, 3]
    assert wrong(1) == [3, 4]


def test_microbatches_are_counted_anew_in_every_step() -> None:
    mistake = Mistake(where="output", how="inner", microbatch=1)
    case = _case(mistake, mistake)
    maker = MistakeMaker(case)

    assert [_shapes(case, step, maker=maker) for step in (0, 1)] == [[3, 4], [3, 4]]


def test_only_the_stage_and_the_step_of_a_mistake_are_wrong() -> None:
    case = _case(Mistake(where="output", how="inner", stage=1), None)

    assert _shapes(case, 0, stage=1) == [4, 4]
    assert _shapes(case, 0, stage=0) == [3, 3]
    assert _shapes(case, 1, stage=1) == [3, 3]


def test_steps_that_do_not_train_make_no_mistakes() -> None:
    mistake = Mistake(where="output", how="inner")
    program = (structs.replace(RIGHT, mistake=mistake), Zero(), Eval(batch_size=4, num_microbatches=2))
    case = small_case(program=program)

    assert [_shapes(case, step) for step in range(3)] == [[4, 4], [3, 3], [3, 3]]


def test_hooks_that_are_registered_early_are_those_of_early_mistakes_of_the_stage() -> None:
    def registered(*mistakes: Mistake, stage: int = 0) -> int:
        MistakeMaker(_case(*mistakes)).attach(stage, module := _Gives())
        return len(module._forward_hooks)

    late, early = (Mistake(where="output", how="inner", early=early) for early in (False, True))
    assert registered(early) == registered(late, early) == 1
    assert registered(late) == registered(early, stage=1) == 0
    assert registered(Mistake(where="input", how="inner", early=True)) == 0


def test_an_early_hook_makes_its_mistake_once_and_in_its_step_only() -> None:
    case = _case(Mistake(where="output", how="more", early=True), None)
    maker = MistakeMaker(case)
    maker.attach(0, module := _Gives())

    def handed_on(step: int) -> object:
        with maker.during(case.program[step], {0: module}):
            return module(X)

    assert len(handed_on(0)) == 2
    assert torch.equal(module(X), X), "between steps"
    assert torch.equal(handed_on(1), X)


def test_mistakes_outside_of_stages_need_no_hooks() -> None:
    for mistake in (Mistake(where="input", how="inner"), Mistake(where="loss", how="raise")):
        case = _case(mistake)
        with MistakeMaker(case).during(case.program[0], {0: (module := _Gives())}):
            assert len(module._forward_hooks) == 0


# ------------------------------------------------------------------------------------------ exceptions and gradients


def test_a_loss_raises_for_the_microbatch_that_is_said_and_is_left_alone_otherwise() -> None:
    case = _case(Mistake(where="loss", how="raise", microbatch=1), None)
    maker = MistakeMaker(case)
    loss = maker.loss(lambda output, target, scale=1.0: (output + target) * scale)

    with maker.during(case.program[0], {}):
        assert loss(1, 2, scale=2.0) == 6
        with pytest.raises(DeliberateError, match="raised on purpose"):
            loss(1, 2)
        assert loss(1, 2) == 3
    with maker.during(case.program[1], {}):
        assert [loss(1, 2) for _ in range(2)] == [3, 3]
    assert loss(1, 2) == 3


def test_the_loss_of_a_case_whose_loss_does_not_raise_is_the_function_itself() -> None:
    def function(output, target):
        return output

    assert MistakeMaker(_case(None)).loss(function) is function
    assert MistakeMaker(_case(Mistake(where="forward", how="raise"))).loss(function) is function
    assert MistakeMaker(_case(None, Mistake(where="loss", how="raise"))).loss(function) is not function


def test_mistakes_elsewhere_do_not_make_a_loss_raise() -> None:
    case = _case(Mistake(where="output", how="inner"), Mistake(where="loss", how="raise"))
    maker = MistakeMaker(case)
    loss = maker.loss(lambda output, target: output)

    with maker.during(case.program[0], {}):
        assert loss(1, 2) == 1
    with maker.during(case.program[1], {}), pytest.raises(DeliberateError):
        loss(1, 2)


def test_the_hook_of_a_reduction_raises_for_its_stage_in_its_step() -> None:
    mistake = Mistake(where="reduction", how="raise", stage=1)
    step = structs.replace(RIGHT, mistake=mistake)
    maker = MistakeMaker(small_case())

    with maker.during(step, {}):
        maker.reduction(0)
        with pytest.raises(DeliberateError):
            maker.reduction(1)
    with maker.during(RIGHT, {}):
        maker.reduction(1)
    with maker.during(structs.replace(RIGHT, mistake=Mistake(where="loss", how="raise", stage=1)), {}):
        maker.reduction(1)
    maker.reduction(1)


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (Mistake(where="backward", how="raise", microbatch=1), DeliberateError),
        (Mistake(where="gradient", how="inner", microbatch=1), RuntimeError),
    ],
)
def test_a_backward_goes_wrong_for_the_microbatch_that_is_said(mistake: Mistake, error: type) -> None:
    case = _case(mistake)
    weight = torch.ones(3, requires_grad=True)
    with MistakeMaker(case).during(case.program[0], {0: (module := _Gives())}):
        first, second = (module([X * weight, X])[0] for _ in range(2))
    first.sum().backward()

    with pytest.raises(error):
        second.sum().backward()


def test_where_no_gradient_is_needed_none_goes_wrong() -> None:
    case = _case(Mistake(where="backward", how="raise"))
    with MistakeMaker(case).during(case.program[0], {0: (module := _Gives())}):
        assert module(X) is X


# ------------------------------------------------------------------------------------------ batches


def _batch(**model):
    return make_batch(with_model(small_case(), **model), 0)


CARRIES = {"carried": ("stream", "scale"), "container": "list"}


def test_a_wrong_first_input_leaves_the_others_alone() -> None:
    batch = _batch(**CARRIES)
    wrong = {
        how: mistaken_batch(batch, Mistake(where="input", how=how))
        for how in ("inner", "more", "fewer", "none")
    }

    assert wrong["inner"].args[0].shape == (4, 4)
    assert all(one is other for one, other in zip(wrong["inner"].args[1:], batch.args[1:], strict=True))
    assert len(wrong["more"].args) == 4
    assert torch.equal(wrong["more"].args[3], batch.args[0])
    assert len(wrong["fewer"].args) == 2
    assert wrong["none"].args[0] is None
    assert all(torch.equal(one.target, batch.target) for one in wrong.values())


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_too_few_samples_or_targets_are_too_few_in_the_batch_dimension(batch_dim: int) -> None:
    batch = _batch(sequence=3, batch_dim=batch_dim, **CARRIES)

    def sizes(how: str) -> list[int]:
        wrong = mistaken_batch(batch, Mistake(where="batch", how=how))
        return [value.shape[batch_dim] for value in (*wrong.args, wrong.target)]

    assert sizes("scarce") == [1, 1, 1, 1]
    assert sizes("targets") == [4, 4, 4, 3]
    assert sizes("ragged") == [4, 5, 4, 4]


@pytest.mark.parametrize("needed", [True, False])
def test_a_longer_argument_needs_a_gradient_if_it_did(needed: bool) -> None:
    batch = _batch(input_requires_grad=needed, **CARRIES)
    ragged = mistaken_batch(batch, Mistake(where="batch", how="ragged"))

    assert [arg.requires_grad for arg in ragged.args] == [needed, needed, False]


def test_mistakes_of_stages_leave_the_batch_alone() -> None:
    batch = _batch()

    assert mistaken_batch(batch, Mistake(where="output", how="inner")) is batch
    assert mistaken_batch(batch, Mistake(where="forward", how="raise")) is batch


def test_a_stage_that_raises_does_so_in_its_forward() -> None:
    case = _case(Mistake(where="forward", how="raise", microbatch=0), stages=(Stage(blocks=(Linear(),)),) * 2)
    with MistakeMaker(case).during(case.program[0], {0: (module := _Gives())}):
        with pytest.raises(DeliberateError):
            module(X)
        assert module(X) is X
