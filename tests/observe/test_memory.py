"""What a rank is seen to keep: exactly the forwards whose graph is alive, whatever keeps it."""

from __future__ import annotations

import gc

import torch
from torch import nn

from pipeconform.observe.memory import Memory


def _forward(memory: Memory, call: int, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with memory.saving(call):
        output: torch.Tensor = module(x)
    return output


def _kept(memory: Memory) -> dict[int, int]:
    return {held.call: held.tensors for held in memory.end()}


def _attention() -> nn.Module:
    # softmax saves its own output: the one saved tensor that would keep itself alive
    return nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=-1), nn.Linear(3, 3), nn.Tanh())


def test_a_backward_releases_what_its_forward_saved() -> None:
    memory, module = Memory(), _attention()
    first, second = (_forward(memory, call, module, torch.randn(2, 3)) for call in (0, 1))

    first.sum().backward()

    assert _kept(memory).keys() == {1}
    assert second.requires_grad


def test_a_graph_that_is_dropped_is_released() -> None:
    memory, module = Memory(), _attention()
    output = _forward(memory, 0, module, torch.randn(2, 3))
    del output

    assert _kept(memory) == {}


def test_half_a_backward_releases_nothing() -> None:
    memory, module = Memory(), _attention()
    x = torch.randn(2, 3, requires_grad=True)
    output = _forward(memory, 0, module, x)

    torch.autograd.grad(output.sum(), x, retain_graph=True)
    memory.note([0], before=1)
    output.sum().backward()

    assert [(held.call, held.before) for held in memory.end()] == [(0, 1)]


def test_what_only_a_circle_keeps_is_not_kept() -> None:
    memory, module = Memory(), _attention()
    circle: list[object] = [_forward(memory, 0, module, torch.randn(2, 3))]
    circle.append(circle)
    gc.disable()
    try:
        del circle
        assert _kept(memory) == {}
    finally:
        gc.enable()


def test_watching_changes_neither_values_nor_gradients() -> None:
    torch.manual_seed(0)
    module, x = _attention(), torch.randn(2, 3)
    module(x).sum().backward()
    right = [p.grad for p in module.parameters()]
    module.zero_grad()

    watched = _forward(Memory(), 0, module, x)
    watched.sum().backward()

    assert torch.equal(watched, module(x))
    assert all(torch.equal(a, p.grad) for a, p in zip(right, module.parameters(), strict=True))


def test_the_most_forwards_that_are_alive_at_a_time_are_counted() -> None:
    memory, module = Memory(), _attention()
    for call in range(3):
        _forward(memory, call, module, torch.randn(2, 3)).sum().backward()
    held = [_forward(memory, call, module, torch.randn(2, 3)) for call in (3, 4)]

    assert memory.kept().at_once == 2
    assert memory.kept().at_once == 0
    del held


def test_inputs_and_outputs_count_as_long_as_anybody_holds_them() -> None:
    memory, held = Memory(), []
    for stage in (0, 1, 1):
        x = torch.randn(2)
        y = (x * 2, {"no tensor": 1})
        memory.passed(stage, (x, 3), y)
        held.append((x, y[0]) if stage else (x, None))
    held[1] = (held[1][0], None)
    del x, y

    found = memory.kept()

    assert found.inputs == 2  # those of stage 0 belong to the caller
    assert found.outputs == (1,)


def test_an_input_that_is_handed_on_is_no_output() -> None:
    memory, x = Memory(), torch.randn(2)
    memory.passed(1, (x,), x)

    assert memory.kept().outputs == ()
