"""Which requirements a stored case is judged by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeconform.adapter import Description
from pipeconform.case.case import Case
from pipeconform.case.focus import Focus
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import BadCaseError, NothingJudgedError, UnknownNameError, UsageError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.replication.campaign import WrapperCampaign
from pipeconform.replication.drawing import is_about
from pipeconform.replication.either import AnyCampaign, kind_of
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.spec import Requirement, requirement, requirements
from pipeconform.spec.wrappers import wrapper_chapter, wrapper_requirement
from pipeconform.wrapper import WrapperDescription

if TYPE_CHECKING:
    from pipeconform.commands.replay import Stored

__all__ = ["asked_of"]


def asked_of(found: Stored, asked: str | None, campaign: AnyCampaign) -> tuple[Requirement, ...]:
    """The one asked for, or that the violation is of, or else all that say something about the case.

    Raises:
        UnknownNameError: no requirement has that id, or the case's schedule is not claimed.
        UsageError: the case is of a wrapper and the implementation is none, or the other way round; the case lies
            outside what is claimed; the requirement asked for says nothing about it.
        NothingJudgedError: no requirement says anything about it.
    """
    case = found.case
    if isinstance(campaign, WrapperCampaign) and not isinstance(case, Case):
        return _of_a_wrapper(found, case, asked, campaign.description)
    if isinstance(campaign, WrapperCampaign) or not isinstance(case, Case):
        raise UsageError(
            f"{campaign.implementation} is a {kind_of(campaign)}, and {found.name} is a case of something else"
        )
    return _of_a_pipeline(found, case, asked, campaign.executors["default"].description)


def _of_a_pipeline(
    found: Stored, case: Case, asked: str | None, description: Description
) -> tuple[Requirement, ...]:
    claim = description.capabilities.schedule(case.schedule)

    def speaks(row: Requirement) -> bool:
        judgement = JUDGEMENTS.get(row.id)
        if judgement is None or not judgement.applies(case):
            return False
        return claim is None or bool(judgement.foci(claim, description.capabilities))

    if asked is None and found.requirement is not None:
        _check_suits(found, case)
        chosen: tuple[Requirement, ...] = (requirement(found.requirement),)
    else:
        wanted = requirements() if asked is None else (requirement(asked),)
        chosen = _some(wanted, tuple(filter(speaks, wanted)), asked)
    if not all(Focus.EDGE in JUDGEMENTS[row.id].draws for row in chosen):
        _check_claimed(case, description)
    return chosen


def _of_a_wrapper(
    found: Stored, case: WrapperCase, asked: str | None, description: WrapperDescription
) -> tuple[Requirement, ...]:
    asked = asked or found.requirement
    wanted = wrapper_chapter().requirements if asked is None else (wrapper_requirement(asked),)

    def speaks(row: Requirement) -> bool:
        listed = WRAPPER_JUDGEMENTS[row.id].drawn(description.claims, seed=0)
        return bool(listed) and is_about(case, listed)

    return _some(wanted, tuple(filter(speaks, wanted)), asked)


def _some(
    wanted: tuple[Requirement, ...], chosen: tuple[Requirement, ...], asked: str | None
) -> tuple[Requirement, ...]:
    if chosen:
        return chosen
    if asked is not None:
        raise UsageError(
            f"{wanted[0].id} says nothing about this case, or the implementation does not claim what it needs; "
            f"leave --requirement out to judge the case by all that do"
        )
    raise NothingJudgedError("no requirement says anything about this case")


def _check_suits(found: Stored, case: Case) -> None:
    """Refuse a violation whose case its requirement is not about: the file was changed, and no judge expects it."""
    judgement = JUDGEMENTS.get(found.requirement or "")
    if judgement is None or not judgement.applies(case):
        raise BadCaseError(
            f"{found.name}: {found.requirement} is not about the case that is stored with it; "
            f"--requirement ID judges the case by another one"
        )


def _check_claimed(case: Case, description: Description) -> None:
    """Refuse a case that the implementation does not claim: it would be refused, not judged."""
    claim = description.capabilities.schedule(case.schedule)
    if claim is None:
        known = [one.name for one in description.capabilities.schedules]
        raise UnknownNameError(f"schedule (of {description.name})", case.schedule, known)
    p, v = case.num_ranks, case.stages_per_rank
    for run in case.runs:
        m = run.num_microbatches
        if not claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m):
            raise UsageError(
                f"{description.name} does not claim {case.schedule} with p = {p}, v = {v}, m = {m}; "
                f"'pipeconform list --schedules' shows what it claims"
            )
