"""Counts are flat where nothing stays behind, and grow where something does."""

from __future__ import annotations

import threading

import torch

from pipeconform.execute.leaks import live_on, take_census


class _Pipeline:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class _Fragile(_Pipeline):
    def close(self) -> None:
        super().close()
        if self.closed > 1:
            raise ValueError("closed already")


def test_a_tensor_more_and_a_thread_more_are_counted() -> None:
    before, wait = take_census(), threading.Event()
    kept, thread = torch.ones(1), threading.Thread(target=wait.wait)
    thread.start()
    after = take_census()
    wait.set()
    thread.join()

    assert (after.tensors, after.threads) == (before.tensors + 1, before.threads + 1)
    assert kept.numel() == 1


def test_steps_and_rounds_are_ten_each_and_every_pipeline_is_closed() -> None:
    made: list[_Pipeline] = []
    ran: list[_Pipeline] = []

    def build() -> _Pipeline:
        made.append(_Pipeline())
        return made[-1]

    first = build()
    found = live_on(first, build=build, run=ran.append, group=None, device=torch.device("cpu"))

    assert ran == [first] * 10 + made[1:]
    assert [one.closed for one in made] == [2] + [1] * 10
    assert found.closing_error is None
    assert found.group_works
    assert found.steps[0].threads == found.steps[1].threads


def test_what_every_step_keeps_shows_as_growth() -> None:
    hoard: list[torch.Tensor] = []

    found = live_on(
        _Pipeline(),
        build=None,
        run=lambda _: hoard.append(torch.ones(1)),
        group=None,
        device=torch.device("cpu"),
    )

    assert found.steps[1].tensors - found.steps[0].tensors == 8
    assert found.rounds == ()


def test_a_second_close_that_raises_is_told_in_words() -> None:
    found = live_on(_Fragile(), build=None, run=lambda _: None, group=None, device=torch.device("cpu"))

    assert found.closing_error == "ValueError: closed already"
