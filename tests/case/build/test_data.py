import itertools
import math

import msgspec
import pytest
import torch

from pipeconform.adapter import Along
from pipeconform.case.blocks import Decoder, Embedding, Head, Linear
from pipeconform.case.build.data import (
    IGNORED,
    autocast_dtype,
    autocast_in,
    boundaries_of,
    decoy_of,
    kwarg_gradients,
    loss_of,
    make_batch,
    passed_on,
    split,
    split_sizes,
    tied_names,
)
from pipeconform.case.build.decoder import EARLIER
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Eval, Kwarg, LossSpec, Model, Scaling, Sgd, Split, Stage, Train, Zero
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


# ------------------------------------------------------------------------------------------ what a batch holds


def _classes(**loss):
    return small_case(
        model=Model(width=3, stages=(Stage(blocks=(Linear(),)), Stage(blocks=(Head(),))), classes=3),
        loss=LossSpec(kind="cross_entropy", **loss),
        program=(Train(batch_size=12, num_microbatches=4), Zero(), Train(batch_size=12, num_microbatches=4)),
    )


def _ignored_of(case, step: int) -> list[int]:
    return [int((micro.target == IGNORED).sum()) for micro in make_batch(case, step).microbatches]


def test_counted_targets_leave_out_whole_microbatches_and_others_in_every_step() -> None:
    case = _classes(reduction="sum", counted=True, ignore=True)

    assert _ignored_of(case, 0) == [0, 3, 2, 0]
    assert _ignored_of(case, 2) == [2, 0, 3, 2]
    assert make_batch(case, 0).loss_kwargs == {"scale": 1 / (12 - 5)}
    assert make_batch(case, 2).loss_kwargs == {"scale": 1 / (12 - 7)}


def test_of_a_single_microbatch_something_counts() -> None:
    case = _classes(reduction="sum", counted=True, ignore=True)
    alone = msgspec.structs.replace(case, program=(Zero(), Train(batch_size=3, num_microbatches=1)))

    assert _ignored_of(alone, 1) == [1]


def test_targets_are_ignored_only_if_asked_and_a_scale_is_given_only_if_asked() -> None:
    assert _ignored_of(_classes(), 0) == [0, 0, 0, 0]
    assert make_batch(_classes(), 0).loss_kwargs == {}
    assert make_batch(_classes(scaled=True), 0).loss_kwargs == {"scale": 1.75}


@pytest.mark.parametrize("asked", [True, False])
def test_gradients_of_inputs_are_asked_of_streams_in_training_only(asked: bool) -> None:
    run = Eval(batch_size=2, num_microbatches=1)
    case = with_model(
        small_case(program=(Train(batch_size=2, num_microbatches=1), run)),
        input_requires_grad=asked,
        carried=("stream", "scale"),
        container="tuple",
        kwargs=(Kwarg(stage=0), Kwarg(stage=1, kind="whole")),
    )

    def needed(step: int) -> list[bool]:
        batch = make_batch(case, step)
        return [
            value.requires_grad
            for value in (*batch.args, batch.kwargs[0]["gain_0"], batch.kwargs[1]["gain_1"])
        ]

    assert needed(0) == [asked, asked, False, asked, asked]
    assert needed(1) == [False] * 5


def test_carried_tensors_have_the_form_of_their_kind() -> None:
    case = with_model(
        small_case(),
        sequence=2,
        dtype="float32",
        carried=("positions", "mask", "scale", "stream"),
        container="list",
    )
    main, positions, mask, scale, stream = make_batch(case, 0).args

    assert [tuple(value.shape) for value in (main, stream)] == [(4, 2, 3)] * 2
    assert [tuple(value.shape) for value in (positions, mask, scale)] == [(4, 2)] * 3
    assert [value.dtype for value in (positions, mask, scale, stream)] == [
        torch.int64,
        torch.bool,
        torch.float32,
        torch.float32,
    ]
    assert 0 <= int(positions.min()) <= int(positions.max()) < 8
    assert 0.5 <= float(scale.min()) <= float(scale.max()) <= 1.5


KWARGS = {
    "tensor": ((4, 2), [(2, 2), (2, 2)]),
    "turned": ((2, 4), [(2, 2), (2, 2)]),
    "whole": ((4, 3), [(4, 3), (4, 3)]),
}


@pytest.mark.parametrize(("kind", "shape", "parts"), [(k, *v) for k, v in KWARGS.items()], ids=KWARGS)
def test_keyword_arguments_are_split_as_their_kind_says(kind, shape, parts) -> None:
    case = with_model(small_case(), sequence=2, kwargs=(Kwarg(stage=1, kind=kind),))
    batch = make_batch(case, 0)

    assert tuple(batch.kwargs[1]["gain_1"].shape) == shape
    assert [tuple(micro.kwargs[1]["gain_1"].shape) for micro in batch.microbatches] == parts
    assert (1 in batch.kwarg_rules) == (kind != "tensor")


def test_two_rules_of_a_stage_are_in_another_order_than_its_arguments() -> None:
    kwargs = (Kwarg(stage=1, kind="turned"), Kwarg(stage=1, kind="rows"))
    batch = make_batch(with_model(small_case(), kwargs=kwargs), 0)

    assert {name: value.shape for name, value in batch.kwargs[1].items()} == {
        "gain_1": (4, 4),
        "rows_1": (4, 4),
    }
    assert list(batch.kwarg_rules[1].items()) == [("rows_1", Along(0)), ("gain_1", Along(1))]
    first = batch.microbatches[0].kwargs[1]
    assert torch.equal(first["gain_1"], batch.kwargs[1]["gain_1"][:, :2])
    assert torch.equal(first["rows_1"], batch.kwargs[1]["rows_1"][:2])


def test_numbers_and_objects_are_given_whole_and_lists_are_cut_by_samples() -> None:
    kwargs = (Kwarg(stage=0, kind="number"), Kwarg(stage=1, kind="objects"))
    batch = make_batch(with_model(small_case(), kwargs=kwargs), 0)

    assert all(micro.kwargs == batch.kwargs for micro in batch.microbatches)
    assert 0 <= batch.kwargs[0]["gain_0"] <= 1
    objects = batch.kwargs[1]["gain_1"]
    assert sorted(objects["names"]) == [f"sample {i}" for i in range(4)]
    assert (objects["nothing"], objects["text"].replace("gain", "")) == (None, "")

    case = with_model(
        small_case(program=(Train(batch_size=5, num_microbatches=2),)),
        kwargs=(Kwarg(stage=0, kind="listed"),),
    )
    listed = make_batch(case, 0)
    first, second = (micro.kwargs[0]["gain_0"] for micro in listed.microbatches)
    assert (len(first), len(second)) == (3, 2)
    assert [*first, *second] == listed.kwargs[0]["gain_0"]


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_positions_count_from_the_begin_of_a_document_and_the_first_may_have_begun_earlier(
    batch_dim: int,
) -> None:
    kwargs = (Kwarg(stage=0, kind="positions"), Kwarg(stage=0, kind="mask"))
    stages = (Stage(blocks=(Decoder(),)), Stage(blocks=(Linear(),)))
    case = with_model(
        small_case(program=(Train(batch_size=12, num_microbatches=2),)),
        stages=stages,
        sequence=5,
        batch_dim=batch_dim,
        kwargs=kwargs,
    )
    told = make_batch(case, 0).kwargs[0]
    positions = told["positions_0"].movedim(batch_dim, 0).tolist()

    assert len(positions) == 12
    assert all(
        after in (0, before + 1) for sample in positions for before, after in itertools.pairwise(sample)
    )
    assert {after == 0 for sample in positions for after in sample[1:]} == {True, False}
    assert len({sample[0] for sample in positions}) > 2
    assert max(sample[0] for sample in positions) < EARLIER
    assert told["mask_0"].dtype is torch.bool
    assert told["mask_0"].unique().tolist() == [False, True]


def test_sequences_of_the_last_run_only_are_longer() -> None:
    run, evaluated = Train(batch_size=2, num_microbatches=1), Eval(batch_size=2, num_microbatches=1)
    case = with_model(
        small_case(program=(run, Zero(), run, evaluated, Zero())), sequence=2, split=Split(longer=True)
    )

    assert [tuple(make_batch(case, step).args[0].shape) for step in (0, 2, 3)] == [
        (2, 2, 3),
        (2, 2, 3),
        (2, 3, 3),
    ]


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_a_longer_sequence_leaves_the_batch_as_it_is(batch_dim: int) -> None:
    case = with_model(small_case(), sequence=2, batch_dim=batch_dim, split=Split(shorter_example=True))

    assert tuple(make_batch(case, 0).args[0].movedim(batch_dim, 0).shape) == (4, 3, 3)


# ------------------------------------------------------------------------------------------ losses

LOSSES = {
    "the output": ("tensor", lambda x: x),
    "a tuple of one": ("tuple1", lambda x: (x,)),
    "a tuple with squares": ("tuple", lambda x: (x, x * x)),
    "a dict with squares": ("dict", lambda x: {"result": x, "square": x * x}),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("kind", "made"), LOSSES.values(), ids=LOSSES)
def test_a_loss_of_squares_is_the_mean_or_the_sum_and_squares_count_a_quarter(kind, made, reduction) -> None:
    """Differences 1, 0, 2, 1 from the target, and outputs 1, 2, 3, 0."""
    case = with_model(small_case(loss=LossSpec(reduction=reduction)), output=kind)
    x, target = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    total = (1 + 0 + 4 + 1) + (0.25 * (1 + 4 + 9 + 0) if kind in ("tuple", "dict") else 0)
    found = loss_of(case)

    assert found.reduction == reduction
    assert found.function(made(x), target).item() == (total if reduction == "sum" else total / 4)
    assert found.function(made(x), target, scale=2.0).item() == 2 * (
        total if reduction == "sum" else total / 4
    )


def test_a_readout_is_applied_before_the_loss_and_gets_its_gradient() -> None:
    case = with_model(small_case(), readout=True)
    stage, target = build_stage(case, 1), torch.zeros(1, 3, dtype=torch.float64)
    output = torch.ones(1, 3, dtype=torch.float64)
    value = loss_of(case, last=lambda: stage).function(output, target)
    value.backward()

    assert stage.readout.shape == (3, 3)
    assert value.item() == pytest.approx(stage.readout.sum(1).square().mean().item())
    torch.testing.assert_close(stage.readout.grad, 2 / 3 * stage.readout.sum(1, keepdim=True).expand(3, 3))


def test_of_merged_outputs_the_first_counts() -> None:
    case = with_model(small_case(), merged=("turned",))
    x, target = torch.ones(2, 2), torch.zeros(2, 2)

    assert loss_of(case).function((x, torch.full((2, 2), 5.0)), target).item() == 1


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 2), ("mean", 1)])
def test_a_loss_of_classes_leaves_out_what_is_ignored(reduction: str, factor: int) -> None:
    """Of three classes with equal scores each has probability one third."""
    target = torch.tensor([[0, IGNORED], [2, IGNORED]])
    found = loss_of(_classes(reduction=reduction)).function(torch.zeros(2, 2, 3, dtype=torch.float64), target)

    assert found.item() == pytest.approx(factor * math.log(3))


# ------------------------------------------------------------------------------------------ the rest


def test_gradients_of_keyword_arguments_are_those_of_tensors_that_need_one() -> None:
    kwargs = (Kwarg(stage=0), Kwarg(stage=1, kind="number"))
    case = with_model(small_case(), kwargs=kwargs, input_requires_grad=True)
    batch = make_batch(case, 0)
    batch.kwargs[0]["gain_0"].grad = torch.ones(4, dtype=torch.float64)

    assert list(kwarg_gradients(batch, stages=(0, 1, 5))) == [0]
    assert torch.equal(kwarg_gradients(batch, stages=(0,))[0]["gain_0"], torch.ones(4, dtype=torch.float64))
    assert kwarg_gradients(batch, stages=(1,)) == {}
    assert kwarg_gradients(make_batch(with_model(case, input_requires_grad=False), 0), stages=(0,)) == {}


def test_autocast_is_in_bfloat16_or_with_a_scaled_loss_in_float16() -> None:
    def dtype_in(case) -> torch.dtype:
        with autocast_in(autocast_dtype(case), device="cpu"):
            return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    run = Train(batch_size=1, num_microbatches=1)
    lower = (msgspec.structs.replace(run, autocast=True),)
    scaled = Sgd(lr=0.5, scaling=Scaling(initial=512.0, backoff=0.5))

    assert dtype_in(small_case(program=(run,))) is torch.float32
    assert dtype_in(small_case(program=lower)) is torch.bfloat16
    assert dtype_in(small_case(program=lower, optimizer=Sgd(lr=0.5))) is torch.bfloat16
    assert dtype_in(small_case(program=lower, optimizer=scaled)) is torch.float16


def test_ties_are_told_by_stage_and_name() -> None:
    assert tied_names(with_model(small_case(), tied=(0, 1))) == ({0: "tied", 1: "tied"},)
    assert tied_names(small_case()) == ()


def test_boundaries_are_those_of_the_first_run_and_need_no_gradient_of_what_is_carried() -> None:
    case = with_model(
        small_case(program=(Zero(), Train(batch_size=3, num_microbatches=1))),
        carried=("scale",),
        container="list",
        stages=(Stage(blocks=(Linear(),)),) * 2,
    )
    ((first, given), (second, last)) = passed_on(case, stages=2)

    assert [one.requires_grad for one in first] == [False, False]
    assert given == second
    assert [(one.shape, one.requires_grad) for one in given] == [((3, 3), True), ((3,), False)]
    assert len(last) == 1
