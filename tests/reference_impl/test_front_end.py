"""Gradients of a parameter that stages of several ranks use: summed on every holder, failures told to all."""

from __future__ import annotations

import threading
from queue import Queue

import torch
from pipeconform.reference_impl.errors import PeerError, StageError
from pipeconform.reference_impl.front_end import Ties, boundaries_of
from pipeconform.reference_impl.link import Failure
from pipeconform.reference_impl.tracing import Point, TracedPipe, split_model
from torch import nn


class Tied(nn.Module):
    """One linear map at both ends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ends, self.middle = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.ends(torch.tanh(self.middle(self.ends(x))))


def _pipe() -> TracedPipe:
    return split_model(Tied(), num_stages=2, points=[Point("middle")], args=(torch.randn(2, 3),), kwargs={})


class _Wire:
    """Two ends of a wire inside one process; the real one, `Link`, is tested over process groups."""

    def __init__(self, mailboxes: list[Queue], position: int) -> None:
        self._mailboxes, self._position = mailboxes, position

    def send(self, value, *, to: int) -> None:
        self._mailboxes[to].put(value)

    def send_failure(self, text: str, *, to: int) -> None:
        self._mailboxes[to].put(Failure(text))

    def receive(self, *, source: int):
        return self._mailboxes[self._position].get(timeout=10)

    def wait(self) -> None:
        """Nothing is under way."""


def _both(step) -> list[BaseException | None]:
    """Let two ranks run ``step(rank, ties, wire, pipe)`` at the same time; what each of them raised."""
    mailboxes, raised = [Queue(), Queue()], [None, None]

    def run(rank: int) -> None:
        pipe = pipes[rank]
        ties = Ties(pipe.info.shared, {rank: pipe.modules[rank]}, placement=(0, 1), position=rank)
        try:
            with ties.step(_Wire(mailboxes, rank)):
                step(rank, pipe)
        except Exception as error:
            raised[rank] = error

    pipes = [_pipe(), _pipe()]
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_every_holder_has_the_sum_added_to_what_was_there() -> None:
    seen: dict[int, nn.Parameter] = {}

    def step(rank: int, pipe: TracedPipe) -> None:
        seen[rank] = pipe.modules[rank].get_parameter("ends.weight")
        seen[rank].grad = torch.full_like(seen[rank], float(rank + 1))

    assert _both(step) == [None, None]
    assert torch.equal(seen[0].grad, torch.full((3, 3), 3.0))
    assert torch.equal(seen[1].grad, seen[0].grad)


def test_a_holder_that_has_no_gradient_gets_the_others() -> None:
    seen: dict[int, nn.Parameter] = {}

    def step(rank: int, pipe: TracedPipe) -> None:
        seen[rank] = pipe.modules[rank].get_parameter("ends.weight")
        if rank:
            seen[rank].grad = torch.ones_like(seen[rank])

    assert _both(step) == [None, None]
    assert torch.equal(seen[0].grad, torch.ones(3, 3))


def test_a_failure_reaches_the_holder_that_had_ended_well() -> None:
    def step(rank: int, pipe: TracedPipe) -> None:
        if not rank:
            raise StageError("rank 0, stage 0, microbatch 1, backward: no")

    first, second = _both(step)

    assert isinstance(first, StageError)
    assert isinstance(second, PeerError)
    assert "microbatch 1" in str(second)


def test_a_parameter_of_one_rank_is_left_alone() -> None:
    pipe = _pipe()
    ties = Ties(pipe.info.shared, dict(enumerate(pipe.modules)), placement=(0, 0), position=0)
    weight = pipe.modules[0].get_parameter("ends.weight")
    weight.grad = torch.ones_like(weight)
    with ties.step(_Wire([], 0)):
        assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(3, 3))


def test_what_is_known_is_said_in_the_words_of_the_contract() -> None:
    (boundary,) = boundaries_of(_pipe().info, (0, 1), batch_dim=0)

    assert (boundary.producer, boundary.consumer) == (0, 1)
    assert [(tensor.shape, tensor.dtype) for tensor in boundary.tensors] == [((2, 3), torch.float32)]


def test_an_optimizer_steps_a_parameter_of_two_stages_once() -> None:
    from pipeconform.adapter import OptimizerStep, SgdStep, step_modules

    pipe = _pipe()
    weight = pipe.modules[0].get_parameter("ends.weight")
    before = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    step_modules(dict(enumerate(pipe.modules)), SgdStep(lr=0.5))(OptimizerStep())

    torch.testing.assert_close(weight.detach(), before - 0.5)
