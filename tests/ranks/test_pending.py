"""What a pool makes of what arrives from its ranks, told by ranks that are no processes."""

from __future__ import annotations

import functools

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks import Died, Raised, Returned, Stuck
from pipeconform.ranks.standing import Standing, Wait
from pipeconform.ranks.wire import Kind
from tests.ranks.acted_ranks import AFTER_FAILURE, IDLE, LIMIT, ActedQuestion, ActedRanks, pool_of, started

# ----------------------------------------------------------------------------------------------------------- answers


def test_every_rank_has_the_verdict_of_its_own_answer_and_the_ranks_are_kept(acted):
    ranks = acted(3)
    pending = started(ranks)
    ranks.at(0.5, lambda: ranks.answers(2, b"two"))
    ranks.at(1.0, lambda: ranks.answers(0, b"zero"))
    ranks.at(1.5, lambda: ranks.answers(1, b"one"))
    ranks.log.clear()

    vector = pending.wait()

    assert vector.values == (b"zero", b"one", b"two")
    assert [round(one.after, 1) for one in vector] == [1.0, 1.5, 0.5]
    assert ranks.log[-1] == "show the last output"
    assert "discard" not in ranks.log
    assert "form" not in ranks.log
    assert pending.wait() is vector


def test_output_is_shown_while_ranks_run_and_trimmed_of_those_that_do(ranks):
    pending = started(ranks)
    ranks.at(1.0, lambda: ranks.answers(0))
    ranks.at(2.0, lambda: ranks.answers(1))
    pending.wait()

    assert ranks.log.count("show output") > 10
    assert (ranks.trimmed[0], ranks.trimmed[-1]) == ((0, 1), (1,))


def test_an_answer_to_an_earlier_task_counts_for_nothing(ranks):
    pending = started(ranks)
    ranks.answers(0, b"old", number=0)
    ranks.answers(0, b"new")
    ranks.answers(0, b"another")
    ranks.answers(1, b"")

    assert pending.wait().values == (b"new", b"")


@pytest.mark.parametrize(("moment", "after"), [(-5.0, 2.0), (1.5, 1.5), (0.0, 0.0), (2.0, 2.0), (7.0, 2.0)])
def test_a_moment_that_cannot_be_is_replaced_by_that_of_arrival(acted, moment, after):
    ranks = acted(1)
    pending = started(ranks)
    begun = ranks.clock.now
    ranks.clock.now += 2.0
    ranks.answers(0, moment=begun + moment)

    assert pending.wait()[0].after == after


def test_what_a_rank_raised_is_its_verdict_with_the_time_of_its_answer(ranks):
    pending = started(ranks)
    ranks.at(1.0, lambda: ranks.answers(1))
    ranks.at(1.0, lambda: ranks.raises(0, Raised("ValueError", "no", after=77.0)))
    vector = pending.wait()

    raised = vector[0]
    assert isinstance(raised, Raised)
    assert (raised.type, raised.message, round(raised.after, 1)) == ("ValueError", "no", 1.0)


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (b"anything", Kind.READY, "sent a frame of kind READY"),
        (b"\xc1", Kind.RAISED, "sent something other than Raised"),
    ],
)
def test_what_no_rank_of_ours_sends_is_no_answer(ranks, body, kind, told):
    pending = started(ranks)
    ranks.answers(0, body, kind=kind)
    ranks.answers(1)
    vector = pending.wait()

    assert told in vector[0].message
    assert vector.first_failure == 0


def test_bytes_that_are_no_frame_end_the_wait_for_a_rank(ranks):
    pending = started(ranks)
    ranks.answers(1)
    ranks.at(1.0, lambda: setattr(ranks.group.channels[0], "wrong", "a frame of kind 99"))
    vector = pending.wait()

    assert vector[0].message == "this rank's process sent a frame of kind 99"
    assert round(vector[0].after, 1) == 1.0


def test_an_answer_before_the_bytes_that_are_no_frame_counts(ranks):
    pending = started(ranks)
    ranks.answers(0, b"good")
    ranks.answers(1, b"good")
    ranks.group.channels[0].wrong = "a frame of kind 99"

    assert pending.wait().ok


# ------------------------------------------------------------------------------------------------------------ deaths


def test_a_process_that_ends_without_an_answer_died_then_and_printed_that(ranks):
    pending = started(ranks)
    ranks.texts[1] = "last words"
    ranks.answers(0)
    ranks.at(2.0, lambda: ranks.ends(1, ago=0.5))
    died = pending.wait()[1]

    assert isinstance(died, Died)
    assert (died.signal, died.output, round(died.after, 1)) == ("SIGKILL", "last words", 1.5)


def test_an_answer_before_its_death_counts(ranks):
    pending = started(ranks)
    ranks.group.channels[1].unread.append(ranks.frame(b"done"))
    ranks.ends(1)
    ranks.answers(0, b"too")

    assert pending.wait().values == (b"too", b"done")


def test_of_a_process_that_has_answered_nothing_more_is_read(ranks):
    pending = started(ranks)
    ranks.answers(1, b"done")
    ranks.group.channels[1].unread.append(ranks.frame(b"more"))
    ranks.at(0.5, lambda: ranks.ends(1))
    ranks.at(1.0, lambda: ranks.answers(0, b"too"))

    assert pending.wait().values == (b"too", b"done")
    assert ranks.group.channels[1].unread


def test_after_a_failure_the_ranks_are_gone_and_others_are_formed(ranks):
    pending = started(ranks)
    ranks.log.clear()
    for rank in range(2):
        ranks.raises(rank, Raised("ValueError", "no"))
    pending.wait()

    assert ranks.log == ["show the last output", "discard and wait", "form"]


def test_a_failure_to_form_others_is_the_next_tasks(ranks):
    pool = pool_of(ranks)
    pending = pool.start("a:b", time_limit=LIMIT)
    ranks.failing["form"] = PoolError("no processes")
    for rank in range(2):
        ranks.raises(rank, Raised("ValueError", "no"))

    assert not pending.wait().ok
    with pytest.raises(PoolError, match="no processes"):
        pool.start("a:b", time_limit=LIMIT)


def test_a_lost_host_ends_the_wait_for_the_others_at_once(ranks):
    pending = started(ranks)
    ranks.at(1.0, lambda: ranks.ends(1, lost="host b is out of reach"))
    stuck = pending.wait()[0]

    assert isinstance(stuck, Stuck)
    assert stuck.why == "not waited for any longer: host b is out of reach"
    assert round(stuck.seconds, 1) == 1.0


def test_a_death_on_this_host_leaves_the_others_time_to_answer(ranks):
    pending = started(ranks)
    ranks.ends(1)
    ranks.at(5.0, lambda: ranks.answers(0, b"late"))

    assert pending.wait()[0] == Returned(b"late", after=pytest.approx(5.0, abs=0.2))


# ------------------------------------------------------------------------------------------------------------ giving up


def test_the_time_limit_ends_a_task_that_still_computes(ranks):
    pending = started(ranks)
    ranks.answers(0)
    stuck = pending.wait()[1]

    assert isinstance(stuck, Stuck)
    assert stuck.why == "time limit of 10 s"
    assert stuck.seconds == pytest.approx(LIMIT, abs=0.2)


def test_an_answer_under_way_is_not_cut_off_by_the_time_limit(ranks):
    pending = started(ranks)
    ranks.answers(0)
    ranks.group.channels[1].receiving = True
    ranks.at(LIMIT + 5.0, lambda: ranks.answers(1))

    assert pending.wait().ok


def test_ranks_that_rest_are_given_up_when_they_have_been_idle(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    vector = pending.wait()

    assert [one.why for one in vector] == ["no rank used CPU time for 0.5 s"] * 2
    assert vector[0].seconds == pytest.approx(IDLE, abs=0.2)


def test_bytes_that_move_are_progress(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    channel = ranks.group.channels[1]
    for tick in range(1, 40):
        ranks.at(tick / 10, lambda: setattr(channel, "moved", channel.moved + 1))
    stuck = pending.wait()[0]

    assert stuck.seconds == pytest.approx(4.0 + IDLE, abs=0.3)


FAILURES = {
    "raises": (lambda ranks: ranks.raises(1, Raised("E", "x")), "rank 1 raised"),
    "dies": (lambda ranks: ranks.ends(1), "rank 1 died (SIGKILL)"),
}


@pytest.mark.parametrize(("fails", "told"), FAILURES.values(), ids=FAILURES)
def test_after_a_failure_idle_ranks_have_less_time_and_are_told_of_it(ranks, fails, told):
    pending = started(ranks)
    ranks.sight.moving = False
    fails(ranks)
    stuck = pending.wait()[0]

    assert stuck.why == f"waited 0.25 s after {told}"
    assert stuck.seconds == pytest.approx(AFTER_FAILURE, abs=0.1)


def test_the_first_of_several_failures_is_told(acted):
    ranks = acted(3)
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.at(0.1, lambda: (ranks.raises(0, Raised("E", "x")), ranks.ends(2, ago=0.05)))

    assert pending.wait()[1].why == "waited 0.25 s after rank 2 died (SIGKILL)"


def test_the_failure_that_was_known_first_stays_the_one_that_is_told(acted):
    ranks = acted(3)
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.at(0.1, lambda: ranks.raises(0, Raised("E", "x")))
    ranks.at(0.2, lambda: ranks.ends(2, ago=0.15))

    assert pending.wait()[1].why == "waited 0.25 s after rank 0 raised"


@pytest.mark.parametrize(
    ("expected", "why"),
    [(True, "waited 0.25 s after rank 0 ended"), (False, "no rank used CPU time for 0.5 s")],
)
def test_where_failures_are_expected_a_rank_that_ended_counts_as_one(ranks, expected, why):
    pending = started(ranks, failure_expected=expected)
    ranks.sight.moving = False
    ranks.answers(0)

    assert pending.wait()[1].why == why


def test_a_closed_connection_of_a_living_process_is_given_up_when_a_second_is_over(ranks):
    pending = started(ranks)
    ranks.answers(0)
    ranks.at(1.0, lambda: setattr(ranks.group.channels[1], "ended", True))
    stuck = pending.wait()[1]

    assert stuck.why == "rank 1 closed its connection without answering"
    assert 2.0 < stuck.seconds < 2.2


def test_a_process_that_ends_soon_after_its_connection_died(ranks):
    pending = started(ranks)
    ranks.answers(0)
    ranks.group.channels[1].ended = True
    ranks.at(0.8, lambda: ranks.ends(1))

    assert isinstance(pending.wait()[1], Died)


def test_what_comes_while_the_pool_decides_is_not_late(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    looked = ranks.step

    def step(timeout: float) -> None:
        looked(timeout)
        if timeout == 0.0 and not ranks.group.channels[0].frames:
            ranks.answers(0, b"just in time")
            ranks.answers(1, b"too")

    ranks.step = step

    assert pending.wait().values == (b"just in time", b"too")


# ------------------------------------------------------------------------------------------------ what stuck ranks say


def stuck_standing(rank: int, *, moment: float, since: float) -> Standing:
    """Of one rank of two that wait for each other's messages."""
    wait = Wait(
        words=f"receive from rank {1 - rank}",
        peers=(1 - rank,),
        number=0,
        name="recv_",
        nth=1,
        stage=rank + 4,
        microbatch=3,
    )
    return Standing(
        began=moment, ended=moment, doing=f"step {rank}", wait=wait, since=since, recorded=True, alone=True
    )


def waiting_for_each_other(ranks: ActedRanks, *, since: float) -> None:
    def ask(asked):
        now = ranks.clock.now
        return ActedQuestion({rank: stuck_standing(rank, moment=now, since=since) for rank in asked})

    ranks.standings = ask


def test_a_proved_deadlock_ends_a_task_before_the_idle_limit_and_is_told_in_full(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.texts[0] = "printed"
    begun = ranks.clock.now
    waiting_for_each_other(ranks, since=begun + 0.125)
    vector = pending.wait()

    seconds = ranks.clock.now - begun
    assert seconds < IDLE
    assert [one.why for one in vector] == ["every rank waits for one that waits too"] * 2
    assert vector[0] == Stuck(
        seconds=seconds,
        why="every rank waits for one that waits too",
        stack="stack of 0",
        output="printed",
        doing="step 0",
        waits="receive from rank 1",
        waits_for=(1,),
        waited=pytest.approx(seconds - 0.125),
        stage=4,
        microbatch=3,
    )
    assert (vector[1].waits_for, vector[1].stage) == ((0,), 5)
    assert len(ranks.asked) == 2  # the proof's two rounds, and no third for the verdict


def test_while_an_answer_is_awaited_the_pool_looks_often(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    waiting_for_each_other(ranks, since=1000.0)
    pending.wait()

    assert ranks.steps[0] == IDLE / 8
    assert ranks.steps[-2] == 0.005


@pytest.mark.parametrize("why", ["a failure", "a limit"])
def test_nobody_is_asked_for_a_proof_where_there_is_a_reason_already(ranks, why):
    pending = started(ranks)
    ranks.sight.moving = False
    waiting_for_each_other(ranks, since=1000.0)
    if why == "a failure":
        ranks.raises(0, Raised("E", "x"))
    else:
        ranks.clock.now += LIMIT
    vector = pending.wait()

    assert len(ranks.asked) == 1  # what they are doing, for the verdicts
    assert vector[1].waits == "receive from rank 0"
    assert "waits too" not in vector[1].why


def test_a_rank_that_says_nothing_is_told_without_what_it_waits_for(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.standings = lambda asked: ActedQuestion({0: Standing(doing="step 7", since=999.0)})
    vector = pending.wait()

    assert (vector[0].doing, vector[0].waited) == ("step 7", None)
    for one in vector:
        assert (one.waits, one.waits_for, one.stage, one.microbatch, one.flights) == ("", (), None, None, ())
    assert ranks.asked[-1] == (0, 1)


def test_a_wait_whose_start_is_unknown_has_lasted_unknown_long(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.standings = lambda asked: ActedQuestion({0: Standing(wait=Wait(words="barrier", peers=(1,)))})
    stuck = pending.wait()[0]

    assert (stuck.waits, stuck.waited) == ("barrier", None)


def test_a_rank_that_a_signal_stopped_is_not_asked_and_is_told_to_be_stopped(ranks):
    pending = started(ranks)
    ranks.sight.moving, ranks.sight.held = False, frozenset({1})
    vector = pending.wait()

    assert vector[0].why == "no rank used CPU time for 0.5 s"
    assert vector[1].why == "no rank used CPU time for 0.5 s; it is stopped by a signal"
    assert (vector[0].stack, vector[1].stack) == ("stack of 0", "")
    assert (ranks.asked[-1], ranks.stacked) == ((0,), [(0,)])


def test_only_ranks_that_did_not_answer_are_given_up(acted):
    ranks = acted(3)
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.answers(1, b"done")
    vector = pending.wait()

    assert [type(one) for one in vector] == [Stuck, Returned, Stuck]
    assert ranks.stacked == [(0, 2)]


# ---------------------------------------------------------------------------------------------------- interrupted waits


def test_time_in_which_a_rank_is_in_the_debugger_does_not_count(ranks):
    pending = started(ranks)
    ranks.sight.moving = False
    ranks.debugged = 1
    ranks.at(100.0, lambda: setattr(ranks, "debugged", None))
    ranks.at(100.0, lambda: setattr(ranks.sight, "moving", True))
    for rank in range(2):
        ranks.at(100.0 + LIMIT / 2, functools.partial(ranks.answers, rank))

    assert pending.wait().ok


def test_after_the_debugger_the_limit_goes_on_where_it_stood(ranks):
    pending = started(ranks)
    ranks.at(4.0, lambda: setattr(ranks, "debugged", 1))
    ranks.at(100.0, lambda: setattr(ranks, "debugged", None))
    stuck = pending.wait()[0]

    assert stuck.why == "time limit of 10 s"
    assert stuck.seconds == pytest.approx(96.0 + LIMIT, abs=0.5)


def test_a_debugger_in_a_rank_that_has_answered_holds_nobody(ranks):
    pending = started(ranks)
    ranks.debugged = 0
    ranks.answers(0)

    assert pending.wait()[1].why == "time limit of 10 s"


@pytest.mark.parametrize("debugged", [None, 1])
def test_the_end_of_the_server_ends_the_wait_and_the_ranks(ranks, debugged):
    pool = pool_of(ranks)
    pending = pool.start("a:b", time_limit=LIMIT)
    ranks.debugged = debugged
    ranks.failing["require alive"] = PoolError("the fork server ended")
    ranks.log.clear()

    with pytest.raises(PoolError, match="the fork server ended"):
        pending.wait()
    assert ranks.log[-2:] == ["show the last output", "discard"]
    with pytest.raises(PoolError, match="cancelled"):
        pending.wait()
    del ranks.failing["require alive"]
    pool.start("a:c", time_limit=LIMIT)
