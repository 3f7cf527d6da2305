"""The outcome of verdicts in which not every rank returned."""

import pytest
from msgspec import structs

from pipeconform.judge.outcome import Status, judge_refusal, judge_verdicts, normalised
from pipeconform.ranks import Raised, Returned, Stuck, VerdictVector
from pipeconform.ranks.verdict import Cause, Died
from tests.facts import tells
from tests.judge.honest import honest_example


def stuck(peer, **others):
    return Stuck(2.0, why="idle", waits=f"receive from rank {peer}", waits_for=(peer,), **others)


def test_a_hang_says_who_waits_for_whom_and_where_every_rank_was():
    outcome = judge_verdicts(
        VerdictVector((stuck(1, stack="in recv"), stuck(0, doing="step 0"), Returned(1)))
    )

    assert outcome.status is Status.HUNG
    assert "\na circle: rank 0 waits for rank 1 waits for rank 0\n" in outcome.finding.message
    assert [place.verdict for place in outcome.places] == ["stuck", "stuck", "returned"]
    assert (outcome.places[0].stack, outcome.places[1].doing) == ("in recv", "step 0")
    assert outcome.places[2].ended == "has returned"


def test_who_waits_for_a_rank_that_raised_is_told_with_it():
    outcome = judge_verdicts(VerdictVector((stuck(1), Raised("ValueError", "x"))))

    assert outcome.status is Status.ERROR
    assert outcome.finding.message.endswith("rank 0 waits for rank 1, which raised ValueError")
    assert len(outcome.places) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_claimed_case_that_any_rank_refuses_is_an_error(rank):
    shown = list(honest_example("plain").shown)
    assert judge_refusal(tuple(shown)) is None
    shown[rank] = structs.replace(shown[rank], unsupported="no room for 3 microbatches")

    outcome = judge_refusal(tuple(shown))

    assert (outcome.status, outcome.finding.rank) == (Status.ERROR, rank)
    assert tells(outcome.finding.message, "claimed", "build()", "Unsupported", "no room for 3 microbatches")


def test_without_a_stuck_rank_there_are_no_places():
    assert judge_verdicts(VerdictVector((Returned(1), Raised("ValueError", "x")))).places == ()
    assert judge_verdicts(VerdictVector((Returned(1),))) is None


def told(*verdicts):
    outcome = judge_verdicts(VerdictVector(verdicts))
    return outcome.status, outcome.finding.kind, outcome.finding.rank


@pytest.mark.parametrize(
    ("verdict", "status", "kind"),
    [
        (Died(signal="SIGABRT"), Status.CRASHED, "died: SIGABRT"),
        (Died(exit_code=3), Status.CRASHED, "died: exit code 3"),
        (Died(lost="it is gone"), Status.CRASHED, "lost its host"),
        (Stuck(2.0, why="idle"), Status.HUNG, "hang"),
        (Raised("ValueError", "bad value 3"), Status.ERROR, "raised ValueError: bad value #"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_how_a_rank_ended_is_the_outcome_wherever_it_is(verdict, status, kind, rank):
    verdicts = [Returned(1), Returned(1)]
    verdicts[rank] = verdict

    assert told(*verdicts) == (status, kind, rank)


def test_of_an_error_with_causes_the_first_cause_is_told():
    causes = (Cause("KeyError", "'w'"), Cause("OSError", "disk 0x7f3a is full, 12.5 of 13"))
    outcome = judge_verdicts(
        VerdictVector((Raised("RuntimeError", "step failed", causes=causes), Returned(1)))
    )

    assert outcome.finding.kind == "raised OSError: disk # is full, # of #"
    assert outcome.finding.message.startswith("rank 0 raised OSError: disk 0x7f3a is full, 12.5 of 13\n")


def test_ranks_that_waited_for_one_that_raised_are_named_and_others_are_not():
    waits = judge_verdicts(VerdictVector((stuck(1), Raised("ValueError", "x"), stuck(1))))
    alone = judge_verdicts(VerdictVector((Returned(1), Raised("ValueError", "x"), Returned(1))))

    assert "\nwhile rank 0, 2 waited for it\n" in waits.finding.message
    assert "waited" not in alone.finding.message


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", ""),
        ("\n  \n  the second line\nmore", "the second line"),
        ("at 0x7ffe12 after 1.5e-05 s", "at # after # s"),
        ("-3 of 10", "# of #"),
        ("sizes [2, 3,1], strides (1,), of 7, 8 and 9", "sizes [#], strides (#,), of # and #"),
        ("available are: [tensor(1.5), tensor(2.0)]", "available are:"),
        ("x" * 200, "x" * 120),
    ],
)
def test_equal_defects_have_equal_texts(message, line):
    assert normalised(message) == line
