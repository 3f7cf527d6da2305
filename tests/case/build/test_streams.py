"""What a stage computes beside its blocks: with a block that changes nothing, the numbers can be worked out by hand."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from pipeconform.case.blocks import Decoder, Dropout, Embedding, InputHooked, Linear, Norm, Unused
from pipeconform.case.build.modules import StageModule, build_model, build_stage, tie
from pipeconform.case.case import Case, Kwarg, Passage, Stage, World
from tests.case.examples import small_case

NOTHING = Stage(blocks=(Unused(),))
X = [[8.0, 16.0], [8.0, 16.0]]


def _case(num_stages: int = 2, **model) -> Case:
    case = small_case()
    fields = {"width": 2, "stages": (NOTHING,) * num_stages, **model}
    model_ = type(case.model)(**fields)
    return small_case(model=model_, world=World(size=num_stages, pipeline_ranks=tuple(range(num_stages))))


def _tensor(values) -> torch.Tensor:
    if isinstance(values, list) and isinstance(values[0], list):
        return torch.tensor(values, dtype=torch.float64)
    return torch.tensor(values, dtype=torch.float64) if isinstance(values[0], float) else torch.tensor(values)


CARRIED = {
    "positions": ([0, 8], [[8, 16], [9, 17]]),
    "mask": ([True, False], [[8, 16], [4, 8]]),
    "scale": ([1.0, 0.5], [[8, 16], [4, 8]]),
    "stream": ([[0.0, 2.0], [4.0, 0.0]], [[8, 17], [10, 16]]),
}


@pytest.mark.parametrize(("kind", "value", "expected"), [(k, *v) for k, v in CARRIED.items()], ids=CARRIED)
def test_what_is_carried_changes_the_main_stream_of_every_stage(kind, value, expected) -> None:
    case = _case(carried=(kind,), container="tuple")
    first, last = (build_stage(case, s) for s in range(2))

    assert last(_tensor(X), _tensor(value)).tolist() == expected
    assert first(_tensor(X), _tensor(value))[0].tolist() == expected


@pytest.mark.parametrize(("container", "kind"), [("tuple", tuple), ("list", list)])
def test_what_is_carried_is_handed_on_as_it_is_but_for_streams_which_every_stage_changes(
    container, kind
) -> None:
    case = _case(carried=("mask", "stream"), container=container)
    mask, stream = _tensor([True, True]), _tensor([[0.0, 4.0], [0.0, 4.0]])

    x, mask_after, stream_after = given = build_stage(case, 0)(_tensor(X), mask, stream)

    assert type(given) is kind
    assert mask_after is mask
    assert x.tolist() == [[8, 18], [8, 18]]
    assert stream_after.tolist() == [[2, 7.5], [2, 7.5]]


KWARGS = {
    "a number": ("number", 0.5, [[12, 24], [12, 24]]),
    "a tensor with a value for every sample": ("tensor", _tensor([0.5, 1.0]), [[12, 24], [16, 32]]),
    "a tensor that every microbatch gets whole": (
        "whole",
        _tensor([[0.0, 0.5], [1.0, 0.5], [0.5, 0.5]]),
        [[12, 24], [12, 24]],
    ),
    "a tensor with the samples in its second dimension": (
        "turned",
        _tensor([[0.25, 1.0], [0.75, 1.0]]),
        [[12, 24], [16, 32]],
    ),
    "a list with a value for every sample": ("listed", [0.5, 1.0], [[12, 24], [16, 32]]),
    "objects": (
        "objects",
        {"factor": 0.25, "text": "abcd", "nothing": None, "names": []},
        [[12, 24], [12, 24]],
    ),
}


@pytest.mark.parametrize(("kind", "value", "expected"), KWARGS.values(), ids=KWARGS)
def test_a_keyword_argument_scales_the_main_stream_of_its_stage(kind, value, expected) -> None:
    case = _case(kwargs=(Kwarg(stage=1, kind=kind),))

    assert build_stage(case, 1)(_tensor(X), gain_1=value).tolist() == expected
    assert build_stage(case, 0)(_tensor(X)).tolist() == X


def test_a_square_is_averaged_over_what_is_no_sample_and_may_be_cut_in_either_dimension() -> None:
    case = _case(kwargs=(Kwarg(stage=0, kind="turned"), Kwarg(stage=0, kind="rows")))
    columns, rows = _tensor([[0.0, 0.5], [1.0, 1.5]]), _tensor([[0.25, 0.75], [0.0, 2.0]])
    build = build_stage(case, 0)

    assert build(_tensor(X), gain_0=columns, rows_0=rows).tolist() == [[18, 36], [32, 64]]
    # the second sample alone, split as it should be and as the other argument should be
    assert build(_tensor(X)[1:], gain_0=columns[:, 1:], rows_0=rows[1:]).tolist() == [[32, 64]]
    assert build(_tensor(X)[1:], gain_0=columns[1:], rows_0=rows[:, 1:]).tolist() == [[42.75, 85.5]]


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_a_list_scales_samples_in_whatever_dimension_they_are(batch_dim: int) -> None:
    case = _case(kwargs=(Kwarg(stage=0, kind="listed"),), sequence=3, batch_dim=batch_dim)
    ones = torch.ones((2, 3, 2) if batch_dim == 0 else (3, 2, 2), dtype=torch.float64)

    scaled = build_stage(case, 0)(ones, gain_0=[0.5, 1.0]).movedim(batch_dim, 0)

    assert scaled.shape == (2, 3, 2)
    assert [sample.unique().tolist() for sample in scaled] == [[1.5], [2.0]]


def test_a_turned_argument_scales_samples_of_sequences() -> None:
    case = _case(kwargs=(Kwarg(stage=0, kind="turned"),), sequence=3)
    scaled = build_stage(case, 0)(
        torch.ones(2, 3, 2, dtype=torch.float64), gain_0=_tensor([[0.25, 1.0], [0.75, 1.0]])
    )

    assert [sample.unique().tolist() for sample in scaled] == [[1.5], [2.0]]


@pytest.mark.parametrize(
    "other",
    [{"factor": 0.5}, {"text": "abcde"}, {"nothing": 0}, {"names": ["sample 1", "sample 0"]}],
    ids=lambda other: next(iter(other)),
)
def test_every_object_and_the_order_of_names_shows(other) -> None:
    given = {"factor": 0.25, "text": "abcd", "nothing": None, "names": ["sample 0", "sample 1"]}
    stage = build_stage(_case(kwargs=(Kwarg(stage=0, kind="objects"),)), 0)
    one, two = (stage(_tensor(X), gain_0=objects) for objects in (given, {**given, **other}))

    assert not torch.equal(one, two)


def test_arguments_of_decoders_scale_nothing() -> None:
    kwargs = (Kwarg(stage=0, kind="mask"), Kwarg(stage=0, kind="positions"), Kwarg(stage=0, kind="number"))
    stages = (Stage(blocks=(Decoder(),)), NOTHING)
    stage = build_stage(_case(stages=stages, sequence=2, kwargs=kwargs), 0)
    told = {"mask_0": torch.ones(1, 2, dtype=torch.bool), "positions_0": torch.tensor([[0, 1]])}
    plain = build_stage(_case(stages=stages, sequence=2), 0)
    x = torch.tensor([[[1.0, 2.0], [3.0, 5.0]]], dtype=torch.float64)

    assert torch.allclose(stage(x, gain_0=0.0, **told), plain(x))
    assert torch.allclose(stage(x, gain_0=1.0, **told), plain(2 * x))
    alone = {**told, "mask_0": torch.zeros(1, 2, dtype=torch.bool)}
    apart = {**told, "positions_0": torch.tensor([[0, 0]])}
    assert not torch.allclose(stage(x, gain_0=0.0, **alone), plain(x))
    assert torch.allclose(stage(x, gain_0=0.0, **alone)[:, 1], stage(x, gain_0=0.0, **apart)[:, 1])


def test_missing_and_unknown_arguments_are_refused_by_name() -> None:
    stage = build_stage(_case(kwargs=(Kwarg(stage=1),)), 1)

    with pytest.raises(TypeError, match=r"stage 1 misses keyword arguments \['gain_1'\]"):
        stage(_tensor(X))
    with pytest.raises(TypeError, match=r"stage 1 got unexpected keyword arguments \['gain_0'\]"):
        stage(_tensor(X), gain_0=1.0, gain_1=1.0)


# ------------------------------------------------------------------------------------------ passages


def _passing(*passages: Passage, num_stages: int = 4) -> Case:
    return _case(num_stages, passages=passages, container="tuple")


def test_a_passage_is_made_by_its_source_used_by_its_users_and_ends_where_it_is_said_to() -> None:
    case = _passing(Passage(kind="stream", source=0, last=2, users=(2,)))
    made = build_stage(case, 0)(_tensor(X))

    assert [value.tolist() for value in made] == [X, [[6, 12], [6, 12]]]
    passed = build_stage(case, 1)(*made)
    assert passed[0].tolist() == X
    assert passed[1] is made[1]
    used = build_stage(case, 2)(*passed)
    assert [value.tolist() for value in used] == [[[11, 22], [11, 22]]]
    assert build_stage(case, 3)(*used).tolist() == [[11, 22], [11, 22]]


def test_several_passages_keep_their_order() -> None:
    early = Passage(kind="stream", source=0, last=3)
    late = Passage(kind="scalar", source=1, last=2, users=(2,))
    case = _passing(early, late)
    made = build_stage(case, 0)(_tensor(X))
    passed = build_stage(case, 1)(*made)

    assert [value.ndim for value in passed] == [2, 2, 0]
    assert passed[1] is made[1]
    assert passed[2].item() == 12
    onward = build_stage(case, 2)(*passed)
    assert [value.ndim for value in onward] == [2, 2]
    assert onward[0].tolist() == [[20, 28], [20, 28]]


def test_what_is_learned_does_not_depend_on_the_stream() -> None:
    case = _case(3, passages=(Passage(kind="learned", source=1, last=2, users=(2,)),), container="list")
    source, user = build_stage(case, 1), build_stage(case, 2)
    one, two = (source(value)[1] for value in (_tensor(X), _tensor(X) * 3))

    assert torch.equal(one, two)
    assert torch.equal(one, torch.tanh(source.learned).expand(2, 2))
    assert not hasattr(user, "learned")
    assert not hasattr(build_stage(_passing(Passage(kind="stream", source=0, last=1)), 0), "learned")


def test_a_stage_takes_what_arrives() -> None:
    case = _passing(Passage(kind="stream", source=0, last=2))

    with pytest.raises(TypeError, match="stage 1 takes 2 positional inputs, got 1"):
        build_stage(case, 1)(_tensor(X))
    with pytest.raises(TypeError, match="stage 3 takes 1 positional inputs, got 2"):
        build_stage(case, 3)(_tensor(X), _tensor(X))


# ------------------------------------------------------------------------------------------ outputs and inputs

OUTPUTS = {
    "tensor": lambda x: x,
    "tuple1": lambda x: (x,),
    "tuple": lambda x: (x, x * x),
    "dict": lambda x: {"result": x, "square": x * x},
}


def _equal(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(torch.equal, one, other))
    return torch.equal(one, other)


@pytest.mark.parametrize(("kind", "made"), OUTPUTS.items(), ids=OUTPUTS)
def test_the_last_stage_gives_the_models_output_and_others_a_tensor(kind, made) -> None:
    case = _case(output=kind)

    assert _equal(build_stage(case, 1)(_tensor(X)), made(_tensor(X)))
    assert torch.equal(build_stage(case, 0)(_tensor(X)), _tensor(X))


def test_further_outputs_follow_the_main_one() -> None:
    main, turned, total = build_stage(_case(merged=("turned", "total")), 1)(_tensor(X))

    assert main.tolist() == X
    assert turned.tolist() == [[24, 24], [576, 576]]
    assert total.item() == 48


def test_tokens_are_embedded_once_before_anything_else_and_in_the_first_stage_only() -> None:
    stages = (Stage(blocks=(Embedding(), Unused())), NOTHING)
    case = _case(stages=stages, tokens=True, carried=("scale",), container="tuple")
    first = build_stage(case, 0)
    tokens = torch.tensor([3, 5])

    x, scale = first(tokens, _tensor([1.0, 0.5]))

    assert torch.equal(x, first.blocks[0].weight[tokens] * _tensor([[1.0], [0.5]]))
    assert build_stage(case, 1)(_tensor(X), scale).tolist() == [[8, 16], [4, 8]]


def test_a_single_tokens_stage_runs_all_its_blocks() -> None:
    case = _case(1, stages=(Stage(blocks=(Embedding(), Linear())),), tokens=True)
    stage = build_stage(case, 0)

    assert torch.allclose(
        stage(torch.tensor([3])), stage.blocks[1](stage.blocks[0].weight[torch.tensor([3])])
    )


def test_tied_stages_apply_what_they_share_after_their_blocks() -> None:
    tied, free = (build_stage(_case(3, tied=(0, 1)), s) for s in (0, 2))
    x = _tensor(X)

    assert torch.allclose(tied(x), x + torch.tanh(x @ tied.tied.t()))
    assert free(x).tolist() == X
    assert not hasattr(free, "tied")


def test_inputs_are_watched_as_the_engine_gave_them() -> None:
    """The hook makes the gradient of the stage's input larger by a quarter."""
    stage = build_stage(_case(stages=(Stage(blocks=(InputHooked(),)), NOTHING)), 0)
    x = _tensor(X).requires_grad_()
    stage(x).sum().backward()

    assert stage.blocks[0].fires["input"] == 1
    assert torch.allclose(x.grad, 1.25 * stage.blocks[0].linear.weight.sum(0).expand(2, 2))


# ------------------------------------------------------------------------------------------ who looks on


class _Recorder:
    def __init__(self, *masks: torch.Tensor) -> None:
        self.given, self.seen, self.replaced = masks, [], []

    def exported(self, stage):
        self.replaced.append(stage)

    def masks(self, stage):
        return self.given

    def forward(self, stage, inputs, output, masks, *, training):
        self.seen.append((stage, inputs, output, masks, training))


DROPS = Stage(blocks=(Dropout(), Unused(), Dropout()))


@pytest.mark.parametrize("training", [True, False])
def test_a_recorder_gets_every_forward_with_the_masks_that_were_drawn(training: bool) -> None:
    stage = build_stage(_case(stages=(NOTHING, DROPS)), 1).train(training)
    stage.recorder = recorder = _Recorder()
    x = _tensor(X)
    output = stage(x)

    ((index, inputs, recorded, masks, trains),) = recorder.seen
    assert (index, trains) == (1, training)
    assert inputs[0] is x
    assert recorded is output
    assert len(masks) == (2 if training else 0)
    product = masks[0] * masks[1] * 4.0 if training else 1.0
    assert torch.equal(output, x * product)


def test_a_stage_that_is_exported_reports_that_alone() -> None:
    stage = build_stage(_case(stages=(NOTHING, Stage(blocks=(Linear(),)))), 1).eval()
    stage.recorder = recorder = _Recorder()
    exported = torch.export.export(stage, (_tensor(X),)).module()

    assert set(recorder.replaced) == {1}
    assert recorder.seen == []
    assert torch.equal(exported(_tensor(X)), stage(_tensor(X)))
    assert len(recorder.seen) == 1


def test_a_recorder_may_say_which_masks_are_used() -> None:
    stage = build_stage(_case(stages=(NOTHING, DROPS)), 1).train()
    keep = torch.tensor([[True, False], [True, True]])
    stage.recorder = _Recorder(keep, torch.ones(2, 2, dtype=torch.bool))
    told = stage(_tensor(X))

    assert told.tolist() == [[32, 0], [32, 64]]
    stage.recorder = None
    drawn = {tuple(stage(_tensor(X)).flatten().tolist()) for _ in range(50)}
    assert len(drawn) > 1


def test_more_masks_than_layers_are_left_alone() -> None:
    stage = build_stage(_case(), 0).train()
    stage.recorder = recorder = _Recorder(torch.zeros(2, 2, dtype=torch.bool))

    assert stage(_tensor(X)).tolist() == X
    assert recorder.seen[0][3] == []


def test_an_intruder_surrounds_the_computation() -> None:
    class Intruder:
        def before(self, stage, inputs):
            return 7, tuple(value * 2 for value in inputs)

        def after(self, stage, microbatch, output):
            return stage, microbatch, output

    stage = build_stage(_case(), 1)
    stage.intruder = Intruder()
    index, microbatch, output = stage(_tensor(X))

    assert (index, microbatch) == (1, 7)
    assert output.tolist() == [[16, 32], [16, 32]]


def test_a_watcher_gives_what_is_computed_on_and_the_recorder_sees_what_was_given() -> None:
    class Watcher:
        @contextmanager
        def forward(self, module, stage, inputs):
            yield tuple(value + 1 for value in inputs)

    stage = build_stage(_case(), 1)
    stage.timeline, stage.recorder = Watcher(), _Recorder()
    x = _tensor(X)

    assert stage(x).tolist() == [[9, 17], [9, 17]]
    assert stage.recorder.seen[0][1][0] is x


def test_edges_convert_what_passes_between_stages_and_neither_inputs_nor_outputs_of_the_model() -> None:
    class Edges:
        def arrived(self, x, *, first):
            return x if first else x + 1

        def leaving(self, x, *, last):
            return x if last else x * 2

    def run(s: int) -> list:
        stage = build_stage(_case(3), s)
        stage.edges = Edges()
        return stage(_tensor([[1.0, 2.0]])).tolist()

    assert [run(s) for s in range(3)] == [[[2, 4]], [[4, 6]], [[2, 3]]]


# ------------------------------------------------------------------------------------------ parameters


def test_no_bias_is_zero_and_no_scale_is_one() -> None:
    """Vectors are drawn with a deviation of 1/2, scales around 1, and maps by how many values they add up."""
    stage = build_stage(_case(width=400, stages=(Stage(blocks=(Linear(), Norm())), NOTHING)), 0)
    linear, norm = stage.blocks

    def near(parameter: nn.Parameter, mean: float, deviation: float) -> bool:
        return abs(parameter.mean() - mean) < 0.1 and 0.8 * deviation < parameter.std() < 1.2 * deviation

    assert near(linear.weight, 0, 0.05)
    assert near(linear.bias, 0, 0.5)
    assert near(norm.weight, 1, 0.5)
    assert near(norm.bias, 0, 0.5)
    assert near(build_stage(_case(width=400, tied=(0, 1)), 0).tied, 0, 0.05)


@pytest.mark.parametrize(("owned", "whose"), [((), 0), ((0,), 0), ((1,), 1), ((2, 1), 1), ((2,), 2)])
def test_tied_stages_share_the_parameter_of_one_that_is_owned(owned, whose) -> None:
    case = _case(4, tied=(0, 1, 2))
    stages = [build_stage(case, s) for s in range(4)]
    expected = stages[whose].tied
    tie(case, stages, owned=owned)

    assert all(stages[s].tied is expected for s in (0, 1, 2))
    assert not hasattr(stages[3], "tied")


def test_stages_that_are_not_tied_share_nothing() -> None:
    case = _case()
    stages = [build_stage(case, s) for s in range(2)]
    tie(case, stages)

    assert not any(hasattr(stage, "tied") for stage in stages)


def test_a_whole_model_gives_every_stage_its_own_arguments_and_what_the_one_before_returned() -> None:
    case = _case(
        3,
        carried=("scale",),
        container="list",
        kwargs=(Kwarg(stage=1, kind="number"), Kwarg(stage=2, kind="number")),
    )
    model = build_model(case)
    scale = _tensor([0.5, 0.5])

    # every stage halves, stage 1 adds a half of what it has, and stage 2 as much as it has
    assert model(_tensor(X), scale, gain_1=0.5, gain_2=1.0).tolist() == [[3, 6], [3, 6]]


def test_everybody_who_looks_on_sees_all_stages_of_a_whole_model() -> None:
    recorder = _Recorder()
    model = build_model(_case(3), recorder=recorder)
    model(_tensor(X))

    assert [stage for stage, *_ in recorder.seen] == [0, 1, 2]
    assert all(isinstance(stage, StageModule) and stage.intruder is None for stage in model.stages)
