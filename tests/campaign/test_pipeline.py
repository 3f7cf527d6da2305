"""What a run asks of a pipeline: chosen schedules, cases that expose faults, and stored cases."""

import pytest
from msgspec import structs

from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.target import some_of
from pipeconform.case.case import Eval, Train, World
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import Capabilities, Description, ErrorContract, ScheduleClaim
from pipeconform.errors import BadCaseError, NothingJudgedError, UnknownNameError, UsageError
from pipeconform.judge.precedence import EARLIER
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import profile, requirement
from tests.case.examples import EVERYTHING, small_case
from tests.judge.honest import CASES

TARGET = PipelineTarget(
    name="it", limits=Limits(capabilities=EVERYTHING, min_ranks=2, max_ranks=3), profile=profile("smoke")
)
CASE = small_case()
ALONE = structs.replace(
    CASE,
    model=structs.replace(CASE.model, stages=CASE.model.stages[:1]),
    world=World(size=1, pipeline_ranks=(0,)),
)


def test_schedules_are_chosen_in_any_case_in_the_order_of_the_claims():
    assert TARGET.chosen(()) == ("GPipe", "ForwardOnly", "V")
    assert TARGET.chosen(("v", "GPIPE")) == ("GPipe", "V")
    with pytest.raises(UnknownNameError, match="Gpip") as caught:
        TARGET.chosen(("GPipe", "Gpip"))
    assert "schedule (of it)" in str(caught.value)


def test_a_target_of_a_description_has_its_claims_and_the_schedules_that_are_asked_for():
    described = Description(name="it", version="7", capabilities=EVERYTHING, variants={"a": {"A": "1"}})
    made = {
        chosen: PipelineTarget.of(described, profile=profile("smoke"), ranks=(1, 3), seed=5, schedules=chosen)
        for chosen in ((), ("v",))
    }

    assert [one.schedules for one in made.values()] == [(), ("V",)]
    one = made[()]
    assert (one.name, one.version, one.seed, one.max_ranks, one.limits.min_ranks) == ("it", "7", 5, 3, 1)
    assert (one.claims, one.errors, one.variants) == (EVERYTHING, ErrorContract(), described.variants)


@pytest.mark.parametrize(
    ("case", "allowed"),
    [
        (CASE, True),
        (structs.replace(CASE, schedule="Unknown"), False),
        (ALONE, False),
        (structs.replace(CASE, world=World(size=3, pipeline_ranks=(0, 2))), True),
        (structs.replace(CASE, world=World(size=4, pipeline_ranks=(0, 3))), False),
    ],
)
def test_stored_cases_are_allowed_within_the_claims_and_the_ranks(case, allowed):
    assert TARGET.allows(case) is allowed


def test_a_case_of_another_kind_is_none_of_a_pipeline_s():
    assert not TARGET.allows(object())
    assert TARGET.points(object()) == TARGET.batch_classes(object()) == frozenset()


def judged_by(case=CASE, *, asked=None, stored=None, target=TARGET):
    return [row.id for row in target.judged_by(case, name="the file", asked=asked, stored=stored)]


def test_a_stored_case_is_judged_by_who_is_asked_for_then_by_its_own_then_by_all_that_apply():
    assert judged_by(asked="TRN-1", stored="FWD-1") == ["TRN-1"]
    assert judged_by(stored="FWD-1") == ["FWD-1"]
    claim = EVERYTHING.schedules[0]
    assert judged_by() == [
        name for name, one in JUDGEMENTS.items() if one.applies(CASE) and one.foci(claim, EVERYTHING)
    ]


def test_a_stored_case_that_its_own_requirement_is_not_about_was_edited():
    for stored in ("TRN-7", "DPW-1"):
        with pytest.raises(BadCaseError, match=f"the file: {stored} does not apply"):
            judged_by(stored=stored)
    with pytest.raises(UsageError, match="TRN-7 does not apply to this case"):
        judged_by(asked="TRN-7")


def test_what_is_not_claimed_is_judged_by_nobody():
    few = Capabilities(schedules=(ScheduleClaim(name="GPipe"),))
    target = PipelineTarget(name="it", limits=Limits(capabilities=few), profile=profile("smoke"))

    with pytest.raises(NothingJudgedError):
        judged_by(CASES["inputs"], target=target)
    with pytest.raises(UsageError, match="TRN-7 does not apply"):
        judged_by(CASES["inputs"], asked="TRN-7", target=target)


def test_a_case_beyond_the_claims_is_refused_with_its_sizes():
    few = Capabilities(schedules=(ScheduleClaim(name="GPipe", max_ranks=1),))
    target = PipelineTarget(name="it", limits=Limits(capabilities=few), profile=profile("smoke"))
    uneven = structs.replace(CASE, program=(Train(batch_size=9, num_microbatches=3),))

    with pytest.raises(UsageError, match="does not claim GPipe with p = 2, v = 1, m = 3"):
        judged_by(uneven, stored="FWD-1", target=target)
    with pytest.raises(UnknownNameError, match="Unknown"):
        judged_by(structs.replace(CASE, schedule="Unknown"), stored="FWD-1")


def test_cases_at_the_edge_need_not_be_claimed():
    name = next(name for name, one in JUDGEMENTS.items() if Focus.EDGE in one.draws)
    few = Capabilities(schedules=(ScheduleClaim(name="GPipe", max_ranks=1),))
    target = PipelineTarget(name="it", limits=Limits(capabilities=few), profile=profile("smoke"))

    assert judged_by(CASE, stored=name, target=target) == [name]


def test_where_nothing_applies_that_is_said():
    rows = (requirement("FWD-1"), requirement("TRN-1"))

    assert some_of(rows, lambda row: row.id == "TRN-1", asked=None) == rows[1:]
    with pytest.raises(NothingJudgedError):
        some_of(rows, lambda row: False, asked=None)
    with pytest.raises(UsageError, match="FWD-1 does not apply"):
        some_of(rows, lambda row: False, asked="FWD-1")


@pytest.mark.parametrize(("name", "worlds"), [("FWD-1", {2, 3}), ("DPC-1", {2, 3, 4})])
def test_cases_against_a_fault_are_about_its_requirement_on_few_ranks(name, worlds):
    judgement = JUDGEMENTS[name]
    cases = list(TARGET.against(name, "GPipe"))

    assert len(cases) > 12
    assert all(judgement.applies(case) for case in cases)
    assert {case.world.num_replicas * case.num_ranks for case in cases} == worlds
    assert len({case.seed for case in cases}) > 1


def test_an_engine_for_one_rank_gets_cases_on_one():
    few = Capabilities(schedules=(ScheduleClaim(name="GPipe", max_ranks=1),), features=EVERYTHING.features)
    target = PipelineTarget(name="it", limits=Limits(capabilities=few), profile=profile("smoke"))

    assert {case.num_ranks for case in target.against("FWD-1", "GPipe")} == {1}


BESIDE = structs.replace(CASE, world=World(size=3, pipeline_ranks=(0, 2)))
EVALUATED = structs.replace(BESIDE, program=(Eval(batch_size=4, num_microbatches=2),))


def asked(name, schedule="GPipe"):
    return TARGET.ask(requirement(name), schedule, promises=lambda: True)


@pytest.mark.parametrize("name", ["TRN-1", "COM-2"])
def test_ranks_outside_of_the_pipeline_are_around_every_subject(name):
    row, words, control = asked(name).surroundings(BESIDE)
    assert (row.id, words) == ("COM-2", "without ranks outside of the pipeline")
    assert (control.world.size, control.world.pipeline_ranks) == (2, (0, 1))
    assert structs.replace(control, world=BESIDE.world) == BESIDE


def test_nothing_is_around_a_pipeline_that_has_all_ranks():
    assert asked("TRN-1").surroundings(CASE) is None


def test_what_only_an_evaluation_shows_is_not_the_business_of_the_given_group():
    """COM-2 looks at trainings, so it cannot explain the violation; of its own it can still be cleared."""
    assert EVALUATED.trains == ()
    assert asked("FWD-1").surroundings(EVALUATED) is None
    assert asked("COM-2").surroundings(EVALUATED) is not None


def test_a_control_that_is_beyond_the_claims_is_none():
    """V has two stages per rank."""
    assert asked("TRN-1", "V").surroundings(BESIDE) is None


def test_requirements_explain_in_order_and_never_themselves():
    names = [row.id for row in asked("TRN-1").explaining(CASE)]
    assert names == list(dict.fromkeys(names))
    assert "TRN-1" not in names
    assert names.index("FWD-1") < names.index("TRN-3")
    assert "TRN-1" in [row.id for row in asked("TRN-3").explaining(CASE)]
    assert asked("TRN-1", "V").explaining(CASE) == asked("TRN-1", "V").earlier(CASE, controlled=False) == ()


def test_behind_a_control_only_what_comes_before_by_name_is_asked():
    alone = [row.id for row in asked("TRN-17").earlier(CASE, controlled=False)]
    assert [row.id for row in asked("TRN-17").earlier(CASE, controlled=True)] == [
        one for one in EARLIER["TRN-17"] if one in alone
    ]
    assert "FWD-1" in alone
