"""The gradients at a stage's edges are told, whoever asks for them, and nothing else changes."""

import copy

import pytest
import torch

from pipeconform.case import blocks
from pipeconform.case.build.modules import StageModule
from pipeconform.case.case import Model, Stage
from pipeconform.observe.gradients import Gradients, tensors_of
from pipeconform.observe.recorder import ForwardRecorder

LINEAR = blocks.Linear()


def _stage(*, watched=True, block=LINEAR, frozen=False, **model):
    torch.manual_seed(0)
    model = Model(width=3, stages=(Stage(blocks=(block,)),) * 2, dtype="float32", **model)
    stage = StageModule(model, 0, model.stages[0])
    stage.requires_grad_(not frozen)
    recorder = ForwardRecorder(gradients=Gradients()) if watched else ForwardRecorder()
    stage.recorder, stage.timeline = recorder, recorder.watcher
    return stage, recorder


def _input():
    return torch.arange(6.0).reshape(2, 3).requires_grad_()


def _told(recorder):
    return {(one.kind, one.position): one.value.tensor() for one in recorder.flow()}


def test_what_arrives_and_what_leaves_is_told_with_the_forward_it_belongs_to():
    stage, recorder = _stage()
    first, second = _input(), _input()
    outputs = [stage(first), stage(second)]

    outputs[1].backward(torch.full((2, 3), 2.0))

    forwards, flow = recorder.take(), recorder.flow()
    assert [one.call for one in forwards] == [0, 1]
    assert {one.call for one in flow} == {1}
    assert [(one.kind, one.stage) for one in flow] == [("output gradient", 0), ("input gradient", 0)]
    assert torch.equal(flow[0].value.tensor(), torch.full((2, 3), 2.0))
    assert torch.equal(flow[1].value.tensor(), second.grad)
    assert first.grad is None


@pytest.mark.parametrize(
    "block", [blocks.Inplace(), blocks.Checkpointed(), blocks.Hooked(), blocks.Shared()], ids=repr
)
def test_nothing_is_computed_otherwise(block):
    plain, _ = _stage(watched=False, block=block)
    watched, recorder = _stage(block=block)
    one, other = _input(), _input()

    for stage, x in ((plain, one), (watched, other)):
        stage(x).square().sum().backward()

    assert torch.equal(one.grad, other.grad)
    for p, q in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    assert torch.equal(_told(recorder)["input gradient", 0], one.grad)


def test_gradients_that_are_asked_for_are_told_too():
    stage, recorder = _stage()
    x = _input()

    (found,) = torch.autograd.grad([stage(x)], [x], [torch.ones(2, 3)])

    assert torch.equal(_told(recorder)["input gradient", 0], found)


def test_the_output_is_the_one_that_the_engine_gets_otherwise():
    plain, _ = _stage(watched=False, view_outputs=True)
    watched, _ = _stage(view_outputs=True)
    one, other = plain(_input()), watched(_input())

    assert type(one.grad_fn) is type(other.grad_fn)
    assert one._backward_hooks == other._backward_hooks
    assert one._is_view() == other._is_view()


def test_tensors_of_a_container_are_told_by_their_position():
    stage, recorder = _stage(carried=("stream",), container="tuple")
    x, carried = _input(), _input()
    first, second = stage(x, carried)

    (first.sum() + 3 * second.sum()).backward()

    told = _told(recorder)
    assert torch.equal(told["output gradient", 1], torch.full((2, 3), 3.0))
    assert torch.equal(told["input gradient", 0], x.grad)
    assert torch.equal(told["input gradient", 1], carried.grad)


def test_a_module_may_write_into_what_it_is_given():
    gradients, x = Gradients(), _input()
    with gradients.forward(torch.nn.Identity(), 0, (x * 1.0,)) as (seen,):
        output = seen.mul_(2.0)
        gradients.passed(0, output)
    output.sum().backward()

    assert torch.equal(x.grad, torch.full((2, 3), 2.0))
    assert {one.kind for one in gradients.take()} == {"input gradient", "output gradient"}


def test_without_gradients_nothing_is_replaced():
    gradients, x = Gradients(), _input()

    with torch.no_grad(), gradients.forward(torch.nn.Identity(), 0, (x,)) as (seen,):
        pass
    with gradients.forward(torch.nn.Identity(), 0, (x.detach(), 1, torch.ones(2, dtype=int))) as others:
        assert all(not isinstance(v, torch.Tensor) or v.grad_fn is None for v in others)

    assert seen is x


def test_a_frozen_stage_tells_what_it_passes_on():
    stage, recorder = _stage(frozen=True)
    x = _input()
    stage(x).sum().backward()

    assert set(_told(recorder)) == {("output gradient", 0), ("input gradient", 0)}


def test_a_copied_stage_tells_the_same_listener():
    stage, recorder = _stage()
    copy.deepcopy(stage)(_input()).sum().backward()

    assert len(recorder.flow()) == 2


def test_the_order_is_that_of_the_recorded_leaves():
    a, b, c = torch.zeros(1), torch.zeros(2), torch.zeros(3)

    assert [len(t) for t in tensors_of({"x": (a, [b]), "y": c, "z": 5})] == [1, 2, 3]
