"""A pool's life and how it hands out tasks, told by ranks that are no processes."""

from __future__ import annotations

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks.pool import Pool
from tests.ranks.acted_ranks import AFTER_FAILURE, IDLE, LIMIT, pool_of, started

# ------------------------------------------------------------------------------------------------ the life of a pool


def test_processes_start_with_the_pool_and_end_with_it(ranks):
    with pool_of(ranks) as pool:
        assert (pool.size, ranks.log) == (2, ["form"])
        assert (pool.idle_limit, pool.idle_limit_after_failure) == (IDLE, AFTER_FAILURE)
    assert ranks.log == ["form", "discard"]
    pool.close()
    assert ranks.log == ["form", "discard"]


def test_a_pool_that_is_forgotten_ends_its_processes(ranks):
    pool = pool_of(ranks)
    del pool

    assert ranks.log == ["form", "discard"]


@pytest.mark.parametrize(
    "use",
    [
        lambda pool: pool.pids,
        Pool.wait_until_formed,
        Pool.restart,
        lambda pool: pool.run("a:b", time_limit=1),
    ],
)
def test_a_closed_pool_refuses_everything_and_starts_nothing(ranks, use):
    pool = pool_of(ranks)
    pool.close()
    pool.rest()

    with pytest.raises(PoolError, match="the pool is closed"):
        use(pool)
    assert ranks.log == ["form", "discard"]


def test_a_pool_closed_during_a_task_is_closed_for_the_next_and_for_that_one(ranks):
    pool = pool_of(ranks)
    pending = pool.start("a:b", time_limit=LIMIT)
    pool.close()

    with pytest.raises(PoolError, match="the pool is closed"):
        pool.start("a:b", time_limit=LIMIT)
    with pytest.raises(PoolError, match="its pool was closed"):
        pending.wait()


def test_formed_ranks_tell_their_processes_and_the_environment_that_each_sees(ranks):
    pool = pool_of(ranks)

    assert pool.wait_until_formed() == ({"RANK": "0"}, {"RANK": "1"})
    assert pool.pids == (100, 101)
    assert ranks.log == ["form", *["form", "wait until formed"] * 2]


def test_a_running_task_keeps_its_processes_whoever_asks_for_them(ranks):
    pool = pool_of(ranks)
    pending = pool.start("a:b", time_limit=LIMIT)
    ranks.log.clear()

    assert pool.pids == (100, 101)
    pool.rest()

    assert ranks.log == ["wait until formed"]
    pending.cancel()


def test_a_generation_that_cannot_be_set_up_is_discarded(ranks):
    pool = pool_of(ranks)
    ranks.failing["wait until formed"] = PoolError("rank 1 is unfit")

    with pytest.raises(PoolError, match="rank 1 is unfit"):
        pool.wait_until_formed()
    assert ranks.log[-1] == "discard"


def test_an_idle_pool_may_rest_and_is_woken_for_its_next_task(ranks):
    pool = pool_of(ranks)
    pool.rest()
    pending = pool.start("a:b", time_limit=LIMIT)

    assert ranks.log == ["form", "rest", "form", "wait until formed", "wake", "hand", "hand"]
    del pending
    pool.rest()
    assert ranks.log[-1] == "rest"


def test_a_restart_replaces_the_processes(ranks):
    pool = pool_of(ranks)
    pool.restart()

    assert ranks.log == ["form", "discard", "form"]


# ------------------------------------------------------------------------------------------------ handing out a task


def test_every_rank_gets_the_payload_or_its_own(acted):
    ranks = acted(3)
    pool = pool_of(ranks)
    for payloads in (b"all", [b"x", b"y", b"z"]):
        pool.start("mod.ule:function", payloads, time_limit=LIMIT).cancel()

    assert ranks.handed == [
        *[(rank, 1, "mod.ule:function", b"all") for rank in range(3)],
        *[(rank, 2, "mod.ule:function", part) for rank, part in enumerate((b"x", b"y", b"z"))],
    ]


@pytest.mark.parametrize(
    ("task", "payloads", "complaint"),
    [
        ("no colon", b"", "'module:function', not 'no colon'"),
        (":function", b"", "'module:function'"),
        ("module:", b"", "'module:function'"),
        ("a:b", [b""], "2 ranks need one payload or 2, not 1"),
        ("a:b", [b""] * 3, "2 ranks need one payload or 2, not 3"),
    ],
)
def test_a_wrong_task_is_handed_to_no_rank(ranks, task, payloads, complaint):
    with pytest.raises(ValueError, match=complaint):
        pool_of(ranks).start(task, payloads, time_limit=LIMIT)
    assert ranks.handed == []


def test_a_pool_runs_one_task_at_a_time(ranks):
    pool = pool_of(ranks)
    first = pool.start("a:first", time_limit=LIMIT)
    with pytest.raises(PoolError, match="still runs 'a:first'"):
        pool.start("a:second", time_limit=LIMIT)
    assert len(ranks.handed) == 2
    for rank in range(2):
        ranks.answers(rank)
    first.wait()

    pool.start("a:second", time_limit=LIMIT)
    assert [number for _, number, _, _ in ranks.handed] == [1, 1, 2, 2]


def test_the_ranks_of_a_task_that_nobody_waits_for_get_no_other(ranks):
    pool = pool_of(ranks)
    pool.start("a:b", time_limit=LIMIT)
    ranks.log.clear()
    pool.start("a:b", time_limit=LIMIT)

    assert ranks.log == ["discard", "form", "wait until formed", "wake", "hand", "hand"]


def test_a_cancelled_task_has_no_verdicts_and_ends_its_ranks_once(ranks):
    pending = started(ranks)
    ranks.log.clear()
    pending.cancel()
    pending.cancel()

    assert ranks.log[:2] == ["show the last output", "discard"]
    assert ranks.log.count("discard") == 1
    with pytest.raises(PoolError, match="'a:b' was cancelled, or its pool was closed"):
        pending.wait()


def test_cancelling_frees_the_pool_and_cancelling_what_is_over_changes_nothing(ranks):
    pool = pool_of(ranks)
    old = pool.start("a:b", time_limit=LIMIT)
    old.cancel()
    new = pool.start("a:c", time_limit=LIMIT)
    old.cancel()

    with pytest.raises(PoolError, match="still runs 'a:c'"):
        pool.start("a:d", time_limit=LIMIT)
    for rank in range(2):
        ranks.answers(rank)
    assert new.wait().ok
    new.cancel()
    assert not ranks.group.discarded
