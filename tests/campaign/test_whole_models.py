"""Requirements about front ends: under how many schedules, and what a refusal must say."""

from __future__ import annotations

import dataclasses

import pytest

from pipeconform.adapter import Description
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.case.case import Case, Split
from pipeconform.case.focus import Limits
from pipeconform.ranks.verdict import Raised, Returned, Verdict, VerdictVector
from pipeconform.spec import profile, requirement
from tests.campaign.answering import Answering
from tests.case.examples import EVERYTHING, small_case, with_model

EXECUTOR = Executor(
    implementation="nobody's",
    description=Description(name="it", version="0", capabilities=EVERYTHING),
    pools=Answering(),
)


def _campaign(name: str, *, schedules: tuple[str, ...] = ()) -> Campaign:
    first = EVERYTHING.schedules[0]
    several = tuple(dataclasses.replace(first, name=f"G{i}") for i in range(3))
    capabilities = dataclasses.replace(EVERYTHING, schedules=(*several, *EVERYTHING.schedules))
    target = PipelineTarget(
        name="whole", limits=Limits(capabilities=capabilities), profile=profile(name), schedules=schedules
    )
    return Campaign(target=target, runners={"default": PipelineRunner(EXECUTOR)})


@pytest.mark.parametrize(("name", "enough"), [("smoke", ("G0",)), ("core", ("G0", "V"))])
def test_a_small_run_judges_front_ends_under_one_schedule_or_two(name: str, enough: tuple[str, ...]) -> None:
    campaign = _campaign(name)
    cell = judge_cell(campaign, requirement("TRC-1"), "G1")

    assert campaign.target.enough(requirement("TRC-1")) == enough
    assert (cell.status, cell.judgements) == ("skipped", 0)
    assert f"judged under {' and '.join(enough)}" in cell.reason


def test_what_is_asked_for_is_judged() -> None:
    assert _campaign("smoke", schedules=("G1",)).target.enough(requirement("TRC-1")) == ("G1",)
    assert "G1" in _campaign("full").target.enough(requirement("TRC-1"))
    assert "G1" in _campaign("smoke").target.enough(requirement("FWD-1"))


def _judged(case: Case, identifier: str, *verdicts: Verdict) -> list[str]:
    execution = Execution(case=case, verdicts=VerdictVector(verdicts))
    outcomes = judge(requirement(identifier), execution, EXECUTOR)
    return [f"{outcome.status}: {outcome.finding.kind}" for outcome in outcomes]


NAMED = Raised("SplitError", "split point before 'stages.8': the model has no submodule 'stages.8'")
UNNAMED = Raised("AttributeError", "'ModuleList' object has no attribute '8'")


def test_a_wrong_point_is_refused_on_every_rank_by_name() -> None:
    case = with_model(small_case(), split=Split(by="points", wrong="unknown"))

    assert _judged(case, "TRC-4", NAMED, NAMED) == []
    assert _judged(case, "TRC-4", NAMED, UNNAMED) == []
    (alone,) = _judged(case, "TRC-4", NAMED, Returned(b""))
    assert alone.startswith("error: raised SplitError")


def test_the_words_about_a_wrong_point_are_judged_apart() -> None:
    case = with_model(small_case(), split=Split(by="points", wrong="unknown"))

    assert _judged(case, "TRC-6", NAMED, NAMED) == []
    assert _judged(case, "TRC-6", NAMED, UNNAMED) == ["failed: unknown split point not named"]
    assert _judged(case, "TRC-6", NAMED, Returned(b"")) == []


def test_a_plain_split_may_not_be_refused() -> None:
    case = with_model(small_case(), split=Split(by="points"))
    (found,) = _judged(case, "TRC-1", NAMED, NAMED)

    assert found.startswith("error: raised SplitError")
