import pytest
import torch

from pipeconform.case.blocks import Embedding, Head, Linear
from pipeconform.case.build.data import IGNORED, boundaries_of, decoy_of, make_batch, split, split_sizes
from pipeconform.case.case import Eval, Kwarg, LossSpec, Model, Stage, Train, Zero
from tests.case.examples import small_case, with_model


@pytest.mark.parametrize("batch_size", range(1, 12))
def test_batches_are_split_as_torch_splits_them(batch_size) -> None:
    for m in range(1, batch_size + 1):
        theirs = [len(part) for part in torch.tensor_split(torch.arange(batch_size), m)]

        assert split_sizes(batch_size, m) == theirs


def test_what_is_no_tensor_is_given_to_every_microbatch() -> None:
    assert split(0.5, num_microbatches=3, batch_dim=0) == [0.5, 0.5, 0.5]


def _all_tensors(case):
    for index, step in enumerate(case.program):
        if not isinstance(step, Zero):
            for micro in make_batch(case, index).microbatches:
                yield from (
                    *micro.args,
                    micro.target,
                    *(v for k in micro.kwargs.values() for v in k.values()),
                )


def test_all_data_differ_between_steps_microbatches_and_roles() -> None:
    case = with_model(
        small_case(),
        width=8,
        carried=("stream", "scale", "stream"),
        container="tuple",
        kwargs=(Kwarg(stage=0), Kwarg(stage=1)),
    )
    seen = {tuple(value.flatten().tolist()) for value in _all_tensors(case)}

    assert len(seen) == len(list(_all_tensors(case)))


def test_two_processes_make_the_same_batch() -> None:
    one, other = make_batch(small_case(), 0), make_batch(small_case(), 0)

    assert torch.equal(one.args[0], other.args[0])
    assert torch.equal(one.target, other.target)


def test_a_step_without_batch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"program\[1\]"):
        make_batch(small_case(), 1)


def test_evaluation_needs_no_input_gradient() -> None:
    run = Eval(batch_size=2, num_microbatches=1)
    case = with_model(
        small_case(program=(run, Train(batch_size=2, num_microbatches=1))), input_requires_grad=True
    )

    assert [make_batch(case, i).args[0].requires_grad for i in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    "value", [torch.ones(2), torch.arange(3), torch.tensor([True, False])], ids=["float", "int", "bool"]
)
def test_a_decoy_has_the_same_form_and_no_equal_element(value) -> None:
    decoy = decoy_of(value)

    assert (decoy.shape, decoy.dtype) == (value.shape, value.dtype)
    assert value.is_floating_point() is bool(decoy.float().isnan().all())
    assert value.is_floating_point() or not torch.equal(decoy, value)


def test_microbatches_ignore_different_numbers_of_targets_and_never_all() -> None:
    case = small_case(
        model=Model(width=3, stages=(Stage(blocks=(Linear(),)), Stage(blocks=(Head(),))), classes=3),
        loss=LossSpec(kind="cross_entropy", reduction="sum", ignore=True),
        program=(Train(batch_size=9, num_microbatches=3),),
    )
    ignored = [int((micro.target == IGNORED).sum()) for micro in make_batch(case, 0).microbatches]

    assert ignored == [0, 1, 2]


def test_the_batch_may_stand_in_another_dimension() -> None:
    case = with_model(small_case(), sequence=3, batch_dim=1)

    assert [tuple(micro.args[0].shape) for micro in make_batch(case, 0).microbatches] == [(3, 2, 3)] * 2


def test_boundaries_tell_what_crosses_for_one_microbatch() -> None:
    case = with_model(
        small_case(),
        stages=(Stage(blocks=(Embedding(),)), Stage(blocks=(Linear(),))),
        tokens=True,
        sequence=3,
        carried=("mask",),
        container="tuple",
    )
    (boundary,) = boundaries_of(case)

    assert [(t.shape, t.dtype, t.requires_grad) for t in boundary.tensors] == [
        ((2, 3, 3), torch.float64, True),
        ((2, 3), torch.bool, False),
    ]


def test_a_decoy_is_wrong_everywhere():
    """Zeros, which are most of the targets of a small case, too."""
    given = torch.tensor([0, 1, 5, -1])
    assert decoy_of(given).tolist() == [1, 0, 0, 1]
    assert decoy_of(given).dtype == torch.int64
    assert decoy_of(torch.tensor([True, False])).tolist() == [False, True]
    assert decoy_of(torch.ones(2, dtype=torch.bfloat16)).isnan().all()
    assert decoy_of("no tensor") == "no tensor"
