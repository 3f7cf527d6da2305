"""What a run asks of a pipeline: chosen schedules, cases that expose faults, and stored cases."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.campaign import pipeline as module
from pipeconform.campaign.pipeline import AskedOfPipeline, PipelineTarget
from pipeconform.campaign.target import some_of
from pipeconform.case.case import Eval, Train, World
from pipeconform.case.draw.claimed import members_within
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.mistakes import Mistake
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.claims import Capabilities, Description, ErrorContract, ScheduleClaim
from pipeconform.errors import BadCaseError, NothingJudgedError, UnknownNameError, UsageError
from pipeconform.judge.precedence import EARLIER
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import profile, requirement
from pipeconform.spec.precedence import PRECEDENCE
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
    with pytest.raises(UnknownNameError, match="Gpip"):
        TARGET.chosen(("Gpip", "GPipe"))


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


def test_cases_against_a_fault_are_all_of_two_seeds(monkeypatch):
    """The first and the last that are drawn among them."""
    drawn = []

    def of(corpus):
        drawn.append((corpus.seed, corpus.focus))
        return [structs.replace(CASE, seed=100 * len(drawn) + number) for number in range(3)]

    monkeypatch.setattr(module, "drawn", of)
    cases = list(TARGET.against("FWD-1", "GPipe"))

    assert {seed for seed, _ in drawn} == {0, 1}
    assert [one.seed for one in cases] == [
        100 * corpus + number for corpus in range(1, len(drawn) + 1) for number in range(3)
    ]


def kind_of(judgement):
    return judgement.any_schedule, judgement.costly, judgement.by_schedule


KINDS = {
    # any schedule, costly, by schedule: in which profiles few schedules are enough
    (False, False, False): (),
    (True, False, False): ("smoke", "core"),
    (True, True, False): ("smoke", "core"),
    (False, True, False): ("smoke", "core"),
    (False, True, True): ("smoke",),
}


@pytest.mark.parametrize("size", ["smoke", "core", "full"])
@pytest.mark.parametrize(("kind", "few"), KINDS.items(), ids=str)
def test_what_does_not_depend_on_the_schedule_or_is_costly_is_judged_under_few_in_small_runs(kind, few, size):
    row = next(requirement(name) for name, one in JUDGEMENTS.items() if kind_of(one) == kind)
    several = tuple(ScheduleClaim(name=f"G{n}") for n in range(4))
    claims = dataclasses.replace(EVERYTHING, schedules=several)
    sized = profile(size)
    target = PipelineTarget(name="it", limits=Limits(capabilities=claims, max_ranks=4), profile=sized)
    names = tuple(one.name for one in several)
    expected = {1: ("G0",), 2: ("G0", "G3"), None: names}[sized.schedules] if size in few else names

    assert target.enough(row) == expected
    left_out = [name for name in names if name not in expected]
    for name in left_out:
        reason = target.ask(row, name, promises=lambda: True).reason
        words = "does not depend on the schedule" if kind[0] else "is costly in a small run"
        assert reason == f"{row.id} {words}: judged under {' and '.join(expected)}"


@pytest.mark.parametrize("every", [True, False])
def test_a_subject_with_members_has_a_case_of_each_where_that_is_asked_for(every):
    sized = structs.replace(profile("full"), corpus=3, costly=3, every_member=every)
    target = PipelineTarget(name="it", limits=Limits(capabilities=EVERYTHING, max_ranks=4), profile=sized)
    claim, subject = EVERYTHING.schedules[0], SUBJECTS[Focus.TOGETHER]
    members = members_within(target.limits, claim, subject)

    assert len(members) > 3
    sizes = {one.focus: one.size for one in target.corpora(requirement("TRN-22"), claim)}
    assert sizes[Focus.TOGETHER] == (len(members) if every else 3)
    assert [one.size for one in target.corpora(requirement("FWD-1"), claim)] == [3]


def test_what_the_recorder_cannot_see_is_not_judged_from_its_records(monkeypatch):
    monkeypatch.setattr(module, "_unseen", lambda: ("a kernel", "another"))
    found = asked("COM-1")

    assert (found.status, found.reason) == (
        "skipped",
        "not seen: the recorder does not know a kernel, another of this torch",
    )
    assert isinstance(asked("FWD-1"), AskedOfPipeline)


def test_a_case_belongs_to_its_schedule():
    assert asked("FWD-1").own(CASE) is CASE
    assert asked("FWD-1").own(structs.replace(CASE, schedule="ForwardOnly")) is None
    assert asked("FWD-1").own(WrapperCase(module="plain")) is None


# ------------------------------------------------------------------------------ controls


def drawn_for(name, target):
    """What a requirement asks under GPipe, with the cases that it is about."""
    found = target.ask(requirement(name), "GPipe", promises=lambda: True)
    return found, [case for corpus in found.corpora for case in corpus.drawn() if found.applies(case)]


@pytest.mark.parametrize("name", ["FWD-6", "FWD-10", "TRN-11", "TRN-16", "TRN-20", "TRN-22", "DPC-1"])
def test_every_case_has_a_control_that_a_basic_requirement_judges(name):
    """Even if other subjects are left in it when this one is taken out."""
    target = PipelineTarget(
        name="it", limits=Limits(capabilities=EVERYTHING, max_ranks=4), profile=profile("smoke")
    )
    about, cases = drawn_for(name, target)

    for case in cases:
        controls = about.controls(case)
        assert case not in [control for _, control in controls]
        assert any(row.id in PRECEDENCE for _, control in controls for row in about.explaining(control)), case


def test_what_a_basic_requirement_judges_is_taken_no_further():
    """Whatever else is left in it."""
    target = PipelineTarget(
        name="it", limits=Limits(capabilities=EVERYTHING, max_ranks=4), profile=profile("smoke")
    )
    about, cases = drawn_for("TRN-5", target)

    assert {words for case in cases for words, _ in about.controls(case)} == {"with nothing frozen"}


def claiming(**claims):
    capabilities = dataclasses.replace(EVERYTHING, **claims)
    return PipelineTarget(
        name="it", limits=Limits(capabilities=capabilities, max_ranks=4), profile=profile("smoke")
    )


@pytest.mark.parametrize(("losses", "there"), [(("mse", "cross_entropy"), True), (("cross_entropy",), False)])
def test_a_control_with_a_loss_that_is_not_claimed_is_none(losses, there):
    about, cases = drawn_for("TRN-20", claiming(losses=losses))
    controls = [words for case in cases for words, _ in about.controls(case)]

    assert controls
    assert any("squared distances" in words for words in controls) is there


def test_nobody_explains_a_case_that_is_not_claimed():
    """For its loss, or because other tensors cross some boundaries than others."""
    alike = dataclasses.replace(EVERYTHING.boundary, differ=False)
    for case, claims in ((CASES["counted"], {"losses": ("mse",)}), (CASES["shapes"], {"boundary": alike})):
        name = "FWD-3"
        for target, explained in ((claiming(), True), (claiming(**claims), False)):
            about = target.ask(requirement(name), "GPipe", promises=lambda: True)
            assert (about.explaining(case) != ()) is explained
            assert about.explaining(CASE) != ()


MISTAKEN = structs.replace(
    CASE,
    program=(structs.replace(CASE.program[0], mistake=Mistake(where="forward", how="raise", stage=1)),),
)


def test_a_mistake_is_explained_by_who_looks_at_its_aftermath_and_the_rest_by_who_does_not():
    def aftermaths(name, case):
        return {JUDGEMENTS[row.id].aftermath is not None for row in asked(name).explaining(case)}

    assert aftermaths("ERR-3", MISTAKEN) == {True}
    assert aftermaths("ERR-3", CASE) == {False}
    assert aftermaths("TRN-3", CASE) == {False}


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
