"""Any function on ranks: values come back in rank order, and every failure is one of a named rank."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from pipeconform import run_on_ranks
from pipeconform.errors import UsageError
from pipeconform.ranks import Died, Raised, Stuck
from tests.facts import tells

FACTOR = 3


@dataclass(frozen=True)
class Point:
    rank: int
    where: str


def scaled_sum(start: int, *, factor: int = FACTOR) -> int:
    value = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(value)
    return int(value) * factor


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_function_of_a_test_module_runs_with_its_globals_on_every_rank(ranks):
    expected = FACTOR * sum(10 + rank for rank in range(ranks))

    assert run_on_ranks(scaled_sum, 10, ranks=ranks).values == (expected,) * ranks


def test_keyword_arguments_closures_and_own_classes_cross_both_ways():
    def where(point: Point, *, suffix: str) -> Point:
        return Point(dist.get_rank(), point.where + suffix + seen)

    seen = "!"

    values = run_on_ranks(where, Point(0, "here"), ranks=2, suffix="?").values
    assert values == (Point(0, "here?!"), Point(1, "here?!"))


def test_a_variable_reaches_the_ranks_and_only_those_that_were_to_see_it():
    def variable() -> str | None:
        return os.environ.get("PIPECONFORM_TRIAL")

    assert run_on_ranks(variable, ranks=2, environment={"PIPECONFORM_TRIAL": "1"}).values == ("1", "1")
    assert run_on_ranks(variable, ranks=2).values == (None, None)


def test_the_rank_that_raises_is_named_with_its_traceback():
    def divide() -> float:
        return 1 / dist.get_rank()

    vector = run_on_ranks(divide, ranks=2)

    assert isinstance(vector[0], Raised)
    assert vector.explain().startswith("rank 0 raised: ZeroDivisionError: division by zero")
    assert "in divide" in vector.explain()
    with pytest.raises(ValueError, match="rank 0 raised: ZeroDivisionError"):
        _ = vector.values


def test_a_killed_rank_is_a_result_although_the_other_one_returned():
    def end_one() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    vector = run_on_ranks(end_one, ranks=2)

    assert isinstance(vector[1], Died)
    assert vector.explain().startswith("rank 1 died: SIGKILL")
    assert run_on_ranks(scaled_sum, 0, ranks=2).ok, "the next call finds a whole group"


def test_a_hang_is_explained_by_the_stack_it_hangs_in():
    def wait_for_ever() -> None:
        if dist.get_rank() == 1:
            dist.recv(torch.zeros(1), src=0)

    vector = run_on_ranks(wait_for_ever, ranks=2, idle_limit=0.3)

    assert isinstance(vector[1], Stuck)
    assert "in wait_for_ever" in vector.explain()


def test_a_hang_says_who_waits_for_whom():
    def wait_for_each_other() -> None:
        dist.recv(torch.zeros(1), src=1 - dist.get_rank())

    vector = run_on_ranks(wait_for_each_other, ranks=2, idle_limit=0.3)

    assert "a circle: rank 0 waits for rank 1 waits for rank 0" in vector.explain()


def test_with_a_record_a_deadlock_is_proved_and_names_what_only_a_record_can_name():
    def post_and_wait() -> None:
        work = dist.irecv(torch.zeros(2, 3), src=1 - dist.get_rank())
        assert work is not None
        work.wait()

    vector = run_on_ranks(post_and_wait, ranks=2, idle_limit=60, record=True)

    assert [one.waits_for for one in vector] == [(1,), (0,)]
    for one, other in zip(vector, (1, 0), strict=True):
        assert tells(one.waits, "receive of float32[2, 3]", f"from rank {other}")
    assert run_on_ranks(scaled_sum, 10, ranks=2, record=True).values == (63, 63)


def test_what_cannot_travel_is_named():
    with pytest.raises(UsageError, match=r"argument 1 \(lock\) cannot be sent to the ranks: cannot pickle"):
        run_on_ranks(max, 1, threading.Lock(), ranks=2)

    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"<lambda> \(or a global that it uses\) cannot be sent"):
        run_on_ranks(lambda: not lock.locked(), ranks=2)


def test_a_value_that_cannot_travel_back_is_the_failure_of_its_rank():
    vector = run_on_ranks(threading.Lock, ranks=2)

    assert isinstance(vector[0], Raised)
    assert "cannot pickle" in vector[0].message
