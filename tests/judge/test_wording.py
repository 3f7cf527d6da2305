"""Which shapes and stages the message of an error names."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.case.mistakes import Mistake
from pipeconform.judge.wording import lacking, names_shape, names_stage, sent_wrongly
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Failed
from tests.judge.grid import evidence_of
from tests.judge.honest import CASES, changed, honest_example


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rank 1, stage 1: bad", True),
        ("Stage 1 forward outputs", True),
        ("stage_index=1", True),
        ("stages 1", True),
        ("stage 10", False),
        ("backstage 1", False),
        ("microbatch 1", False),
    ],
)
def test_a_stage_is_named_by_its_number(text, found):
    assert names_stage(text, 1) is found


@pytest.mark.parametrize(
    ("text", "free", "found"),
    [
        ("expected float64[2, 3]", None, True),
        ("torch.Size([2, 3])", None, True),
        ("(2, 3)", None, True),
        ("[2, 3, 1]", None, False),
        ("[20, 3]", None, False),
        ("[20, 3]", 0, True),
        ("[*, 3]", 0, True),
        ("2 3", None, False),
    ],
)
def test_a_shape_is_named_in_brackets_of_any_kind(text, free, found):
    assert names_shape(text, (2, 3), free=free) is found


CAUSE = ("pipeconform.case.build.mistakes.DeliberateError", "on purpose")
SHAPE = Mistake(where="output", how="inner", stage=0)  # [2, 4] instead of [2, 3]
DTYPE = Mistake(where="output", how="down", stage=0)  # float32 instead of float64
FORWARD = Mistake(where="forward", how="raise", stage=1, microbatch=2)
GRADIENT = Mistake(where="gradient", how="inner", stage=0, microbatch=1)
NONE = Mistake(where="output", how="none", stage=0)


def _lacks(mistake, text, *, causes=(CAUSE,), rank=None):
    """The kind of what a message lacks, in a pipeline of two stages on two ranks with microbatches of two samples."""
    failed = Failed(type="ValueError", message=text, step=0, causes=causes)
    rank = mistake.stage if rank is None else rank
    found = lacking(CASES["plain"], 0, mistake, failed, rank=rank, expected=honest_example("plain"))
    return None if found is None else found.kind


@pytest.mark.parametrize(
    ("mistake", "text", "kind"),
    [
        (Mistake(where="batch", how="scarce"), "there is one sample only", None),
        (Mistake(where="batch", how="scarce"), "there is too little", "batch not named"),
        (Mistake(where="batch", how="scarce"), "expecting 2 arg_mbs but got 1", None),
        (Mistake(where="batch", how="scarce"), "num_microbatches is 2, but there is 1", None),
        (Mistake(where="batch", how="scarce"), "thumbs down", "batch not named"),
        (SHAPE, "stage 0: the output has shape [2, 4], expected [2, 3]", None),
        (SHAPE, "the output has shape [2, 4], expected [2, 3]", "stage not named"),
        (SHAPE, "stage 1: the output has shape [2, 4], expected [2, 3]", "stage not named"),
        (SHAPE, "stage 0: it has shape [2, 4], expected [2, 3]", "tensor not named"),
        (SHAPE, "stage 0: the output has shape [2, 4]", "expected shape not named"),
        (SHAPE, "stage 0: the output must have shape [2, 3]", "actual shape not named"),
        (SHAPE, "stage 0: output: expected [2, 4], got [2, 3]", "sides exchanged"),
        (DTYPE, "stage 0: the output is float32, expected float64", None),
        (DTYPE, "stage 0: the output is float32", "expected dtype not named"),
        (DTYPE, "stage 0: the output must be float64", "actual dtype not named"),
        (DTYPE, "stage 0: output: expected float32, got float64", "sides exchanged"),
        (Mistake(where="input", how="inner"), "an argument has shape [2, 4], expected [2, 3]", None),
        (Mistake(where="input", how="inner"), "an argument is wrong", "expected shape not named"),
        (Mistake(where="input", how="batch"), "an argument is wrong", None),
        (Mistake(where="input", how="flattened"), "an argument is wrong", None),
        (NONE, "stage 0: the output is None", None),
        (NONE, "stage 0: the output is missing", "actual not named"),
        (Mistake(where="output", how="object", stage=0), "stage 0: the output is a str", None),
        (Mistake(where="output", how="mapping", stage=0), "stage 0: the output is a dict", None),
        (Mistake(where="output", how="mapping", stage=0), "stage 0: the output is wrong", "actual not named"),
        (Mistake(where="mode", how="no_grad"), "step() requires gradients to be enabled", None),
        (Mistake(where="mode", how="inference_mode"), "not within torch.inference_mode()", None),
        (Mistake(where="mode", how="no_grad"), "element 0 of tensors is wrong", "gradients not named"),
        (GRADIENT, "stage 0, microbatch 1: a gradient has another shape", None),
        (GRADIENT, "stage 0, microbatch 1: it has another shape", "direction not named"),
        (GRADIENT, "stage 0: a gradient has another shape", "microbatch not named"),
        (FORWARD, "rank 1, stage 1: forward of microbatch 2", None),
        (FORWARD, "rank 1: forward of microbatch 2", "stage not named"),
        (FORWARD, "rank 0, stage 1: forward of microbatch 2", "rank not named"),
        (FORWARD, "rank 1, stage 1: backward of microbatch 2", "direction not named"),
        (FORWARD, "rank 1, stage 1: forward of microbatch 1", "microbatch not named"),
        (structs.replace(FORWARD, where="backward"), "rank 1, stage 1: input part of microbatch 2", None),
        (structs.replace(FORWARD, where="backward"), "rank 1, stage 1: loss of 2", "direction not named"),
    ],
)
def test_an_error_names_what_is_wrong_and_where(mistake, text, kind):
    assert _lacks(mistake, text) == kind


def test_the_loss_belongs_to_the_last_stage():
    mistake = Mistake(where="loss", how="raise", microbatch=0)

    assert _lacks(mistake, "rank 1, stage 1: loss of microbatch 0", rank=1) is None
    assert _lacks(mistake, "rank 1, stage 0: loss of microbatch 0", rank=1) == "stage not named"


@pytest.mark.parametrize(
    ("text", "kind"), [("3", None), ("1", None), ("0", "rank not named"), ("2", "rank not named")]
)
def test_a_rank_of_a_replica_has_its_number_in_the_world_or_in_its_pipeline(text, kind):
    case = evidence_of("replicas").case
    failed = Failed(type="ValueError", message=f"rank {text}, stage 1: forward of 2", step=0, causes=(CAUSE,))
    mistake = structs.replace(FORWARD, microbatch=None)
    found = lacking(case, 0, mistake, failed, rank=3, expected=honest_example("plain"))

    assert (None if found is None else found.kind) == kind


def test_the_models_own_exception_is_the_cause_of_the_error():
    text = "rank 1, stage 1: forward of microbatch 2"

    assert _lacks(FORWARD, text, causes=()) == "cause lost"
    assert _lacks(FORWARD, text, causes=(("builtins.ValueError", ""), CAUSE)) is None


# --------------------------------------------------------------------- what was sent nevertheless


def _received(change, *, number=1):
    """Evidence in which the last stage computed one of its microbatches, the second, on something else."""
    made = honest_example("plain")
    forwards = list(made.shown[1].steps[0].forwards)
    (given,) = forwards[number].inputs
    array = Array.of(change(given.array.tensor()))
    forwards[number] = structs.replace(forwards[number], inputs=(structs.replace(given, array=array),))
    return changed(made, rank=1, forwards=tuple(forwards))


def test_right_values_may_be_sent_before_an_error():
    made = honest_example("plain")

    assert sent_wrongly(made, 0, SHAPE) is None
    assert sent_wrongly(made, 0, Mistake(where="input", how="inner")) is None


def test_what_was_sent_in_a_step_that_the_model_did_not_reach_is_not_known():
    made = _received(lambda right: right + 1)
    shorter = dataclasses.replace(
        made, expected=structs.replace(made.expected, steps=made.expected.steps[:1])
    )

    assert sent_wrongly(shorter, 0, SHAPE) is not None
    assert sent_wrongly(shorter, 1, SHAPE) is None
    assert sent_wrongly(shorter, 7, SHAPE) is None


def test_mistakes_in_a_computation_send_nothing_wrong_by_themselves():
    assert sent_wrongly(_received(lambda right: right + 1), 0, FORWARD) is None


@pytest.mark.parametrize("number", [0, 1, -1])
def test_values_of_another_shape_must_not_arrive(number):
    said = sent_wrongly(_received(lambda right: right.repeat(1, 2), number=number), 0, SHAPE)

    assert said == "stage 1 on rank 1 was nevertheless given float64[2, 6]; expected: float64[2, 3]"


def test_values_that_the_stage_before_never_made_must_not_arrive():
    said = sent_wrongly(_received(lambda right: right + 1), 0, SHAPE)

    assert said == "stage 1 on rank 1 was nevertheless given values that stage 0 never made"


def test_what_stages_before_the_mistake_got_and_other_steps_and_mistakes_do_not_count():
    made = _received(lambda right: right + 1)

    assert sent_wrongly(made, 0, structs.replace(SHAPE, stage=1)) is None
    assert sent_wrongly(made, 1, SHAPE) is None
    assert sent_wrongly(made, 99, SHAPE) is None
    assert sent_wrongly(made, 0, GRADIENT) is None
