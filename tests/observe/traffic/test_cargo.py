"""What an operation carries is told by memory; where that does not tell, nothing is said."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

from pipeconform.observe.traffic.cargo import CargoFinder
from pipeconform.observe.traffic.records import Cargo


def forwarded(finder: CargoFinder, stage: int, number: int, x: Tensor) -> Tensor:
    output = nn.Linear(2, 2)(x) * 1.0
    finder.passed(stage, number, (x,), output)
    return output


def test_an_output_and_views_of_it_are_recognised_when_sent() -> None:
    finder = CargoFinder()
    first = forwarded(finder, 1, 0, torch.ones(3, 2))
    second = forwarded(finder, 1, 1, torch.ones(3, 2))

    finder.sent(0, second.detach())
    finder.sent(1, first.detach().reshape(-1).view(torch.uint8))
    finder.sent(2, first.detach()[1:])
    assert finder.found == {
        0: Cargo("output", 1, 1),
        1: Cargo("output", 1, 0),
        2: Cargo("output", 1, 0),
    }


def test_a_copy_is_not_recognised() -> None:
    finder = CargoFinder()
    output = forwarded(finder, 0, 0, torch.ones(3, 2))

    finder.sent(0, output.detach().clone())
    finder.sent(1, torch.empty(0))
    assert finder.found == {}


def test_memory_that_is_used_again_is_not_mistaken() -> None:
    memory = bytearray(4 * 6)

    def there() -> Tensor:
        return torch.frombuffer(memory, dtype=torch.float32).reshape(3, 2)

    finder = CargoFinder()
    finder.passed(0, 0, (torch.ones(3, 2),), there())
    gc.collect()
    finder.sent(0, there())

    assert finder.found == {}


def test_the_storage_of_an_output_that_is_gone_is_no_other_tensor_s() -> None:
    finder = CargoFinder()
    storages = set()
    for number in range(50):
        output = forwarded(finder, 0, number, torch.ones(300, 2))
        storages.add(output.untyped_storage()._cdata)
        del output
        other = torch.zeros(300, 2)
        assert other.untyped_storage()._cdata not in storages
        finder.sent(number, other)

    assert len(storages) == 50
    assert finder.found == {}


def test_the_latest_message_in_a_buffer_is_what_a_stage_is_given() -> None:
    finder = CargoFinder()
    buffer = torch.empty(3, 2)
    finder.received(0, buffer)
    finder.received(1, buffer)
    forwarded(finder, 1, 0, buffer.detach().requires_grad_())
    forwarded(finder, 2, 1, buffer)

    assert finder.found == {1: Cargo("input", 1, 0)}


def test_an_input_that_lies_inside_a_message_tells_of_the_message() -> None:
    finder = CargoFinder()
    message, other = torch.empty(10, dtype=torch.float64), torch.empty(10, dtype=torch.float64)
    finder.received(0, message)
    finder.received(1, other)
    forwarded(finder, 1, 0, message[4:8].view(2, 2).float())
    assert finder.found == {}

    finder.passed(1, 1, (message[4:8].view(2, 2),), torch.ones(1))
    assert finder.found == {0: Cargo("input", 1, 1)}


def test_gradients_are_recognised_on_both_sides_of_a_stage() -> None:
    finder = CargoFinder()
    leaf = torch.ones(3, 2, requires_grad=True)
    taken = torch.ones(3, 2, requires_grad=True)
    inner = torch.ones(3, 2, requires_grad=True) * 1.0
    outputs = [forwarded(finder, 1, number, x) for number, x in enumerate((leaf, taken, inner))]
    for number, output in enumerate(outputs):
        gradient = torch.empty(3, 2)
        finder.received(number, gradient)
        gradient.fill_(1.0)
        if number == 1:
            (taken.grad,) = torch.autograd.grad(output, taken, gradient)
        elif number == 2:
            (of_inner,) = torch.autograd.grad(output, inner, gradient)
        else:
            output.backward(gradient)
    assert leaf.grad is not None
    assert taken.grad is not None
    for number, found in enumerate((leaf.grad, taken.grad, of_inner), start=3):
        finder.sent(number, found)

    assert finder.found == {
        **{number: Cargo("output gradient", 1, number) for number in range(3)},
        **{number + 3: Cargo("input gradient", 1, number) for number in range(2)},
    }


def test_a_step_forgets_what_may_leave_but_not_what_came() -> None:
    finder = CargoFinder()
    kept, buffer = forwarded(finder, 0, 0, torch.ones(3, 2)), torch.empty(3, 2)
    finder.received(0, buffer)
    finder.begin()
    finder.sent(1, kept.detach())
    forwarded(finder, 1, 0, buffer)

    assert finder.found == {0: Cargo("input", 1, 0)}


def test_a_forward_inside_a_backward_is_left_out() -> None:
    finder = CargoFinder()
    x = torch.ones(3, 2, requires_grad=True)
    numbers = iter(range(2))
    output = torch.utils.checkpoint.checkpoint(
        lambda value: forwarded(finder, 0, next(numbers), value), x, use_reentrant=False
    )
    output.sum().backward()
    finder.sent(0, output.detach())

    assert finder.found == {0: Cargo("output", 0, 0)}


def test_tensors_with_gaps_are_only_taken_for_themselves() -> None:
    finder = CargoFinder()
    whole = torch.zeros(4, 4)
    finder.passed(0, 0, (), whole[:, :3])
    finder.sent(0, whole[1:2, 3:])
    finder.sent(1, whole[:, :3])

    assert finder.found == {1: Cargo("output", 0, 0)}
