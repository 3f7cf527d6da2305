"""The timeline sees every way to run a backward, and leaves no trace."""

import copy
import importlib

import pytest
import torch
from torch.distributed.pipelining import _backward as torch_backward
from torch.utils.checkpoint import checkpoint

from pipeconform.case.blocks import Linear, Mlp, Norm, Shared
from pipeconform.case.build.modules import StageModule, build_stage
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.observe.recorder import ForwardRecorder
from pipeconform.observe.timeline import Timeline

ReferenceStage = importlib.import_module("pipeconform.reference_impl.stage").Stage


ORDINARY = (Mlp(), Norm())


def _stage(index=1, *, frozen=False, blocks=ORDINARY, recorder=None) -> StageModule:
    model = Model(width=3, stages=(Stage(blocks=(Linear(),)), Stage(blocks=blocks, frozen=frozen)))
    case = Case(
        model=model,
        schedule="any",
        world=World(size=2, pipeline_ranks=(0, 1)),
        program=(Train(batch_size=2, num_microbatches=1),),
    )
    stage = build_stage(case, index)
    stage.recorder = recorder or ForwardRecorder(Timeline())
    stage.timeline = stage.recorder.timeline
    return stage


def _input(seed=0, *, requires_grad=True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, dtype=torch.float64, generator=generator).requires_grad_(requires_grad)


def _seen(stage) -> list[str]:
    """Kinds with the number of the call; passages of one graph task share a bracket."""
    found, last = [], None
    for event in stage.timeline.take():
        if event.kind == "F":
            found.append(f"F{event.call}{event.parts}")
        elif event.task == last:
            found[-1] += event.kind
        else:
            found.append(f"{event.call}{event.kind}")
        last = None if event.kind == "F" else event.task
    return ["".join(sorted(set(word))) if word[0].isdigit() else word for word in found]


def test_a_full_backward_is_one_task_with_both_parts():
    stage = _stage()
    stage(_input()).sum().backward()

    assert _seen(stage) == ["F0IW", "0IW"]


def test_every_forward_has_a_graph_of_its_own():
    stage = _stage()
    first, second = stage(_input(0)), stage(_input(1))
    second.sum().backward()
    first.sum().backward()

    assert _seen(stage) == ["F0IW", "F1IW", "1IW", "0IW"]


@pytest.mark.parametrize("blocks", [ORDINARY, (Norm(),), (Shared(),)])
def test_torchs_split_backward_shows_its_parts_apart(blocks):
    stage = _stage(blocks=blocks)
    x = _input()
    output = stage(x)
    _, groups = torch_backward.stage_backward_input(
        [output], [torch.ones_like(output)], [x], stage.parameters()
    )
    torch_backward.stage_backward_weight(stage.parameters(), groups)
    words = _seen(stage)

    assert words[:2] == ["F0IW", "0I"]
    assert set(words[2:]) == {"0W"}


@pytest.mark.parametrize("blocks", [ORDINARY, (Norm(),), (Shared(),)])
def test_the_references_split_backward_shows_its_parts_apart(blocks):
    stage = _stage(blocks=blocks)
    engine = ReferenceStage(stage, index=1)
    output = engine.forward(0, _input(), {}, differentiate=True, boundary=True)
    engine.backward_input(0, [torch.ones_like(output)])
    middle = _seen(stage)
    engine.backward_weight(0)

    assert middle == ["F0IW", "0I"]
    assert _seen(stage) == ["0W"]


def test_inputs_that_need_no_gradient_leave_a_weight_part_only():
    stage = _stage()
    stage(_input(requires_grad=False)).sum().backward()

    assert _seen(stage) == ["F0W", "0W"]


def test_a_frozen_stage_has_an_input_part_only():
    stage = _stage(frozen=True)
    stage(_input()).sum().backward()

    assert _seen(stage) == ["F0I", "0I"]


def test_a_forward_without_gradients_has_no_parts():
    stage = _stage()
    with torch.no_grad():
        stage(_input())

    assert _seen(stage) == ["F0"]


def test_a_recomputation_begins_inside_a_backward():
    stage = _stage()
    checkpoint(stage, _input(), use_reentrant=True).sum().backward()
    events = stage.timeline.take()

    assert [(event.kind, event.call) for event in events[:2]] == [("F", 0), ("F", 1)]
    assert events[0].task < 0 <= events[1].task
    assert {event.call for event in events[2:]} == {1}
    assert {event.kind for event in events[2:]} == {"I", "W"}


def test_a_copied_stage_is_still_watched():
    stage = _stage()
    copy.deepcopy(stage)(_input())

    assert _seen(stage) == ["F0IW"]


def test_calls_keep_counting_and_records_carry_their_number():
    stage = _stage()
    stage(_input())
    stage.timeline.take()
    stage(_input())

    assert [event.call for event in stage.timeline.take()] == [1]
    assert [forward.call for forward in stage.recorder.take()] == [0, 1]


def test_times_and_order_agree():
    stage = _stage()
    stage(_input()).sum().backward()
    times = [event.seconds for event in stage.timeline.take()]

    assert times == sorted(times)


@pytest.mark.parametrize("blocks", [ORDINARY, (Shared(),)])
def test_watching_changes_neither_values_nor_gradients_nor_the_module(blocks):
    watched, plain = _stage(blocks=blocks), _stage(blocks=blocks)
    plain.timeline = None
    inputs = [_input(), _input()]
    before = [dict(part._parameters) for part in watched.modules()]
    outputs = [stage(x) for stage, x in zip((watched, plain), inputs, strict=True)]
    for output in outputs:
        output.square().sum().backward()

    assert torch.equal(*outputs)
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    for mine, right in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, right.grad)
        assert not mine._backward_hooks
    assert not inputs[0]._backward_hooks
    for part, parameters in zip(watched.modules(), before, strict=True):
        assert all(part._parameters[name] is parameter for name, parameter in parameters.items())


def test_a_forward_that_raises_leaves_the_parameters_in_place():
    stage = _stage()
    with pytest.raises(RuntimeError):
        stage(torch.randn(2, 5, dtype=torch.float64))

    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in stage.parameters())
    assert stage.recorder.take() == ()
    assert stage.timeline.call == -1
