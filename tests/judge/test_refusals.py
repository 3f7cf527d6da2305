"""How cases are refused, judged from verdicts written by hand."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.adapter import Placement, ScheduleClaim
from pipeconform.bounds.gauge import Gauge
from pipeconform.case import blocks
from pipeconform.case.case import Model, Stage, World
from pipeconform.judge.outcome import Status
from pipeconform.judge.refusals import Refusal, ranks_that_can_know, texts_of
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.verdict import Cause, Died, Raised, Returned, Stuck, VerdictVector
from tests.case.examples import EVERYTHING, small_case
from tests.facts import tells

misplaced = JUDGEMENTS["ERR-16"].refused
refused = JUDGEMENTS["FWD-24"].refused

PLACED = Raised(type="ValueError", message="stages 0 and 3 belong on rank 0")
WORDLESS = Raised(type="ValueError", message="bad configuration")
GONE = Raised(type="RuntimeError", message="connection closed by peer")
DEAD = Died(signal="SIGABRT")
WAITS = Stuck(0.3, "waits for a receive")
LOOPED = dataclasses.replace(
    EVERYTHING, schedules=(ScheduleClaim(name="Loop", placement=Placement.LOOP, stages_per_rank=(2,)),)
)


def case_of(num_ranks, *, placement="v", bystanders=0):
    """Two stages on each rank, placed as a V where the schedule wants a loop; ranks outside come first."""
    ranks = tuple(range(bystanders, num_ranks + bystanders))
    return small_case(
        model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * (2 * num_ranks)),
        schedule="Loop",
        stages_per_rank=2,
        world=World(size=num_ranks + bystanders, pipeline_ranks=ranks, placement=placement),
    )


def refusal(*verdicts, bystanders=0, **fields):
    case = case_of(len(verdicts) - bystanders, bystanders=bystanders)
    return Refusal(case=case, capabilities=LOOPED, verdicts=VerdictVector(verdicts), **fields)


def told(judge, made):
    return [(one.status, one.finding.kind, one.finding.rank) for one in judge(made)]


# ---------------------------------------------------------------------------------------- misplaced stages


def test_who_has_other_stages_than_the_schedule_s_can_know():
    assert ranks_that_can_know(case_of(2), LOOPED) == (0, 1)
    assert ranks_that_can_know(case_of(3), LOOPED) == (0, 2)
    assert ranks_that_can_know(case_of(3, bystanders=1), LOOPED) == (0, 2)
    assert ranks_that_can_know(case_of(2, placement="loop"), LOOPED) == ()
    assert ranks_that_can_know(case_of(2, placement=""), LOOPED) == ()
    assert ranks_that_can_know(case_of(2), EVERYTHING) == ()


@pytest.mark.parametrize(
    ("verdict", "status", "kind"),
    [
        (Returned(None), Status.FAILED, "another placement accepted"),
        (DEAD, Status.CRASHED, "died: SIGABRT"),
        (WAITS, Status.HUNG, "hang"),
        (GONE, Status.ERROR, "refused on some ranks only"),
        (WORDLESS, Status.FAILED, "unclear refusal"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_that_can_know_refuses_misplaced_stages_in_words(verdict, status, kind, rank):
    verdicts = [PLACED, PLACED]
    verdicts[rank] = verdict
    (found,) = misplaced(refusal(*verdicts))

    assert (found.status, found.finding.rank) == (status, rank)
    assert found.finding.kind.startswith(kind)
    assert found.verdicts == VerdictVector(tuple(verdicts)).describe()


def test_misplaced_stages_that_are_refused_are_counted():
    made = refusal(PLACED, WORDLESS, PLACED)  # the middle one cannot know

    assert told(misplaced, made) == []
    assert made.gauge.compared == 2


@pytest.mark.parametrize(
    "message",
    [
        "another placement",
        "it is placed wrongly",
        "stage 1 on rank 0",
        "rank 0 has stage 1",
        "Stages\nof Ranks",
    ],
)
def test_stages_and_ranks_may_be_named_in_any_order(message):
    one = structs.replace(PLACED, message=message)

    assert told(misplaced, refusal(one, one)) == []


@pytest.mark.parametrize("message", ["stage 1 is wrong", "rank 0 is wrong", "replacements"])
def test_what_names_only_one_of_them_is_unclear(message):
    assert told(misplaced, refusal(PLACED, structs.replace(PLACED, message=message))) == [
        (Status.FAILED, "unclear refusal", 1)
    ]


def test_what_harms_most_is_told():
    assert told(misplaced, refusal(GONE, Returned(None))) == [
        (Status.FAILED, "another placement accepted", 1)
    ]
    assert told(misplaced, refusal(Returned(None), WAITS)) == [(Status.HUNG, "hang", 1)]
    assert told(misplaced, refusal(WAITS, DEAD)) == [(Status.CRASHED, "died: SIGABRT", 1)]


def test_the_ranks_outside_are_not_asked():
    assert told(misplaced, refusal(Returned(None), PLACED, PLACED, bystanders=1)) == []
    assert told(misplaced, refusal(Returned(None), PLACED, WORDLESS, bystanders=1)) == [
        (Status.FAILED, "unclear refusal", 2)
    ]


def test_a_plan_that_is_answered_with_unsupported_is_no_error():
    made = refusal(Returned(None), Returned(None), unsupported=True)

    assert told(misplaced, made) == []
    assert made.gauge.compared == 2


# ------------------------------------------------------------------------------------- on every rank or none


def test_where_one_rank_refuses_all_must():
    assert told(refused, refusal(WORDLESS, WORDLESS)) == []
    for others in (Returned(None), GONE, WAITS, DEAD):
        assert told(refused, refusal(WORDLESS, others)) == [(Status.ERROR, "refused on some ranks only", 1)]
        assert told(refused, refusal(others, WORDLESS)) == [(Status.ERROR, "refused on some ranks only", 0)]


def test_where_none_refuses_nothing_is_to_be_judged():
    for verdicts in ((Returned(None), Returned(None)), (GONE, GONE), (DEAD, WAITS)):
        made = refusal(*verdicts)

        assert told(refused, made) == []
        assert made.gauge.compared == 2


def test_the_first_error_and_the_first_rank_without_one_are_named():
    (found,) = refused(refusal(GONE, WORDLESS, Returned(None)))

    first = found.finding.message.splitlines()[0]
    assert (found.status, found.finding.kind, found.finding.rank) == (
        Status.ERROR,
        "refused on some ranks only",
        0,
    )
    assert tells(first, "rank 1", "ValueError", "bad configuration", "rank 0", "no error")


def test_the_text_of_an_error_has_its_causes():
    raised = structs.replace(WORDLESS, causes=(Cause("KeyError", "'a'"), Cause("OSError", "gone")))

    assert texts_of([raised, PLACED]) == ["bad configuration\n'a'\ngone", PLACED.message]


def test_what_is_counted_is_counted_once():
    gauge = Gauge()
    list(refused(refusal(WORDLESS, WORDLESS, Returned(None), bystanders=1, gauge=gauge)))

    assert gauge.compared == 2
