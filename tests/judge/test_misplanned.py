"""Wrong plans, judged from answers written by hand."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.adapter import ErrorContract
from pipeconform.case.misplans import TABLES, Misplan, num_surplus
from pipeconform.case.orders import Order
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.misplanned import plans_are_refused
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Failed
from pipeconform.ranks.verdict import Returned, Stuck, VerdictVector
from tests.judge.honest import CASES, honest_example

PROMISES = ErrorContract(promises=dict.fromkeys(("plan", "neighbours", "table"), ("ValueError",)))
RIGHT = honest_example("plain")
WRONG = dataclasses.replace(RIGHT, expected=honest_example("sum").expected)


def _judged(
    misplan,
    *errors,
    promises=PROMISES,
    against=lambda case: pytest.fail("somebody raised"),
    verdicts=None,
    by=plans_are_refused,
) -> list[Outcome]:
    plain = CASES["plain"]
    p = plain.num_ranks
    stages = plain.model.stages
    surplus = stages[: num_surplus(misplan, num_ranks=p)]
    case = structs.replace(
        plain,
        world=structs.replace(
            plain.world, misplan=misplan, order=Order(seed=0) if misplan.how in TABLES else None
        ),
        model=structs.replace(plain.model, stages=stages + surplus),
    )
    failed = {rank: error for rank, error in enumerate(errors) if error is not None}
    return list(
        by(
            Aftermath(
                case=case,
                errors=promises,
                verdicts=VerdictVector(verdicts or tuple(Returned(None) for _ in range(p))),
                failed=failed,
                evidence=None,
                as_mistaken=lambda: pytest.fail("not asked"),
                against=against,
            )
        )
    )


def _said(text, *, type="ValueError", step=None, bases=()):
    return Failed(type=type, message=text, step=step, bases=bases)


REMAINDER = _said("3 stages are not a multiple of 2 ranks")


def test_the_promised_error_on_every_rank_is_what_is_wanted():
    assert _judged(Misplan(how="remainder"), REMAINDER, REMAINDER) == []
    derived = _said("3 stages are not a multiple of 2 ranks", type="engine.Bad", bases=("ValueError",))
    assert _judged(Misplan(how="remainder"), REMAINDER, derived) == []


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((None, None), "remainder: accepted"),
        ((REMAINDER, None), "remainder: not on every rank"),
        ((_said("3 stages, 2 ranks", type="KeyError"),) * 2, "remainder: raised KeyError"),
        ((REMAINDER, _said("bad configuration")), "remainder: not clear"),
    ],
)
def test_anything_else_is_a_broken_promise(errors, kind):
    (found,) = _judged(Misplan(how="remainder"), *errors)

    assert (found.status, found.finding.kind) == (Status.FAILED, kind)
    assert "promised: ValueError" in found.finding.message


@pytest.mark.parametrize(
    ("misplan", "text"),
    [
        (Misplan(how="single"), "GPipe has one stage per rank, but there are 4 stages"),
        (Misplan(how="schedule"), "there is no schedule 'NoSuchSchedule'"),
        (Misplan(how="stages", rank=1), "2 and 4 stages"),
        (Misplan(how="microbatches", rank=1, number=5), "{m} and 5 microbatches"),
        (Misplan(how="metadata", rank=1), "boundaries are declared, but not on rank 1"),
        (Misplan(how="shape"), "stage 0 gives [2, 3], but stage 1 takes [2, 4]"),
        (Misplan(how="no forward", stage=1), "stage 1 has no forward of microbatch 0"),
        (Misplan(how="no backward", stage=1), "1B0 is missing"),
        (Misplan(how="forward twice"), "0F0 is there twice"),
        (Misplan(how="backward twice"), "0W0 is there twice"),
        (Misplan(how="backward first"), "0B0 is before 0F0"),
        (Misplan(how="no computation"), "'0X0' is no action"),
        (Misplan(how="other microbatch"), "0F{m}: there is no such microbatch"),
        (Misplan(how="circle"), "rank 0 waits for rank 1, which waits for rank 0"),
        (Misplan(how="no line"), "the table is for 1 rank"),
        (Misplan(how="lines exchanged"), "stage 0 is on rank 0, not 1"),
    ],
    ids=lambda one: getattr(one, "how", ""),
)
def test_every_mistake_has_words_that_tell_it(misplan, text):
    good = _said(text.format(m=CASES["plain"].trains[0].num_microbatches))

    assert _judged(misplan, good, good) == []
    (found,) = _judged(misplan, _said("something is wrong"), good)
    assert "it does not name" in found.finding.message


def test_neighbours_are_compared_while_the_pipeline_is_built():
    late = _said("stage 0 gives [2, 3], but stage 1 takes [2, 4]", step=0)
    (found,) = _judged(Misplan(how="shape"), late, late)

    assert found.finding.kind == "shape: too late"


NOTHING = ErrorContract()


def test_without_a_promise_any_error_will_do():
    assert _judged(Misplan(how="stages", rank=1), None, _said("boom"), promises=NOTHING) == []


def test_without_a_promise_a_plan_may_be_carried_out():
    assert _judged(Misplan(how="metadata", rank=0), promises=NOTHING, against=lambda case: RIGHT) == []


def test_without_a_promise_the_plan_of_any_rank_may_count():
    def against(case):
        return RIGHT if case.trains[0].num_microbatches == 5 else WRONG

    misplan = Misplan(how="microbatches", rank=1, number=5)

    assert _judged(misplan, promises=NOTHING, against=against) == []


def test_a_wrong_result_that_nobody_refused_is_wrong_for_everybody():
    (found,) = _judged(Misplan(how="stages", rank=1), promises=NOTHING, against=lambda case: WRONG)

    assert found.finding.kind == "stages: silent wrong result"
    assert (
        "no rank raised, although the plan of pipeline rank 1 has one more stage per rank"
        in found.finding.message
    )


@pytest.mark.parametrize(
    ("misplan", "judged"),
    [
        (Misplan(how="remainder"), False),
        (Misplan(how="schedule"), False),
        (Misplan(how="stages", rank=1), False),
        (Misplan(how="microbatches", rank=1, number=5), True),
    ],
    ids=lambda one: getattr(one, "how", ""),
)
def test_values_of_an_engine_that_places_stages_itself_say_nothing_where_it_may_place_them_otherwise(
    misplan, judged
):
    own = WRONG.capabilities
    claims = tuple(dataclasses.replace(one, takes_placement=False) for one in own.schedules)
    placing = dataclasses.replace(WRONG, capabilities=dataclasses.replace(own, schedules=claims))

    assert bool(_judged(misplan, promises=NOTHING, against=lambda case: WRONG))
    assert bool(_judged(misplan, promises=NOTHING, against=lambda case: placing)) == judged


def test_whoever_waits_for_a_rank_that_raised_hangs_promise_or_not():
    ends = (Stuck(0.2, "waits"), Returned(None))
    (found,) = _judged(Misplan(how="stages", rank=1), None, _said("boom"), promises=NOTHING, verdicts=ends)

    assert (found.status, found.finding.kind) == (Status.HUNG, "others left waiting")
    assert (
        "when the plan of pipeline rank 1 has one more stage per rank and rank 1 raised"
        in found.finding.message
    )


@pytest.mark.parametrize(
    ("identifier", "misplan"),
    [
        ("ERR-8", Misplan(how="shape")),
        ("ERR-9", Misplan(how="remainder")),
        ("ERR-19", Misplan(how="circle")),
    ],
)
def test_the_requirements_about_plans_find_a_wrong_plan_that_is_accepted(identifier, misplan):
    (found,) = _judged(misplan, by=JUDGEMENTS[identifier].aftermath)

    assert (found.status, found.finding.kind) == (Status.FAILED, f"{misplan.how}: accepted")
