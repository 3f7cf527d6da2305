"""Real hangs of real gloo processes are explained; what only looks like one is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeconform.ranks import Crew, Died, ForkServer, Pool, Returned, Stuck
from pipeconform.ranks.verdict import VerdictVector
from tests.facts import tells

PATIENT = 60.0  # seconds of idleness: what is found sooner was proved


@pytest.fixture(scope="module")
def pools(server: ForkServer) -> Iterator[dict[int, Pool]]:
    made = {size: Pool(Crew(server, size=size), idle_limit=PATIENT) for size in (2, 3)}
    yield made
    for pool in made.values():
        pool.close()


def run(pool: Pool, task: str, *, idle_limit: float = PATIENT) -> VerdictVector:
    pool.idle_limit = idle_limit
    return pool.run(f"hanging_ranks:{task}", time_limit=120.0)


PROVED = {
    "receive_circle": ["receive of float32[2, 3] from rank 1 with tag 5", "from rank 0 with tag 5"],
    "send_circle": ["send of float32[3] to rank 1", "send of float32[3] to rank 0"],
    "barrier_and_receive": ["barrier", "receive of float32[1] from rank 0"],
    "recorded_late": ["receive of float32[2, 3] from rank 1 with tag 5", "from rank 0 with tag 5"],
    "unmatched_receive": ["receive of float32[1] from rank 1", "barrier"],
}


@pytest.mark.parametrize("task", PROVED)
def test_a_deadlock_of_recorded_ranks_is_proved_long_before_idleness_would_show_it(pools, task):
    vector = run(pools[2], task)

    assert [type(one) for one in vector] == [Stuck, Stuck], vector.describe()
    assert [one.waits_for for one in vector] == [(1,), (0,)]
    for one, words in zip(vector, PROVED[task], strict=True):
        assert tells(one.why, "every rank waits")
        assert words in one.waits
        assert f"in {task}" in one.stack
        assert one.waited is not None
        assert 0 <= one.waited <= one.seconds
    assert vector.waiting.endswith("a circle: rank 0 waits for rank 1 waits for rank 0")


def test_the_circle_of_three_ranks_is_told_with_what_each_was_doing(pools):
    vector = run(pools[3], "receive_circle")

    assert vector.waiting.endswith("a circle: rank 0 waits for rank 1 waits for rank 2 waits for rank 0")
    assert [one.doing for one in vector] == [f"as told by rank {rank}" for rank in range(3)]
    assert vector.first_failure == 0


def test_without_a_recorder_the_frames_of_torch_tell_who_waits_for_whom(pools):
    vector = run(pools[2], "plain_circle", idle_limit=0.5)

    assert [one.waits for one in vector] == ["receive from rank 1", "receive from rank 0"]
    assert "no rank used CPU time" in vector[0].why
    assert vector.waiting.endswith("a circle: rank 0 waits for rank 1 waits for rank 0")


def test_a_transport_that_spins_without_moving_anything_does_not_hide_a_hang(pools):
    vector = run(pools[2], "forgotten_send", idle_limit=0.5)

    assert [one.waits for one in vector] == ["receive from rank 1", "receive from rank 0"]
    assert "no rank used CPU time" in vector[0].why


def test_who_waits_for_a_rank_that_left_early_is_told(pools):
    vector = run(pools[2], "left_early", idle_limit=0.5)

    assert [type(one) for one in vector] == [Stuck, Returned]
    assert vector.waiting.endswith("rank 0 waits for rank 1, which has returned")


def test_the_rank_that_died_first_is_the_root(pools):
    vector = run(pools[3], "died_first")

    assert isinstance(vector[0], Died)
    assert vector.first_failure == 0
    assert "rank 0  died      SIGKILL" in vector.describe()


@pytest.mark.parametrize("task", ["late_sender", "big_messages", "stopped_and_continued"])
def test_who_is_only_slow_is_not_accused(pools, task):
    assert run(pools[2], task).ok


def test_a_wait_that_ends_by_itself_is_no_deadlock(pools):
    vector = run(pools[2], "timed_wait")

    assert not any(isinstance(one, Stuck) for one in vector), vector.describe()
