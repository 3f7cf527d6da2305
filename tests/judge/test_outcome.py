"""The outcome of verdicts in which not every rank returned."""

import pytest
from msgspec import structs

from pipeconform.judge.outcome import Status, judge_refusal, judge_verdicts
from pipeconform.ranks import Raised, Returned, Stuck, VerdictVector
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
