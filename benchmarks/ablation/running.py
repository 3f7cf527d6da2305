"""What becomes of a fault when one claim is left out that its requirement has to do with."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from benchmarks.ablation.claims import CLAIMS, without
from benchmarks.ablation.engine import reference_without
from pipeconform.adapter import Capabilities
from pipeconform.bounds.gauge import Gauge
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.trial import Fault
from pipeconform.case.any_case import AnyCase
from pipeconform.case.focus import Limits
from pipeconform.certificate.decision import weakened_by
from pipeconform.errors import ContractError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import certification_levels, core_requirements, mandatory, profile, requirement

__all__ = ["HOLDS", "Record", "is_claimed", "matters", "tried"]

HOLDS = ("detected", "not claimed", "in part", "named", "nothing compared")
"""The outcomes in which no false word is said; the other one is "ok"."""
_LOOKED_AT = frozenset({"outputs", "microbatch_losses", "state", "sub_groups"})
_RANKS = 4
_MOST = 200  # executions of one fault, as it is tried with all its claims


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One fault without one claim."""

    fault: str
    claim: str
    requirement: str
    outcome: str
    """detected; not claimed; in part: ok, and said to be without the subject; named: ok, and a certificate names the
    claim; nothing compared; ok: an escape."""
    detail: str = ""
    refused: tuple[str, ...] = ()
    """The levels that need the requirement and are refused for this cell alone."""
    executions: int = 0


def matters(fault: Fault, claimed: Capabilities) -> tuple[str, ...]:
    """The claims that subjects of the fault's requirement need, and those that judgements of any of them look at."""
    claim, judgement = claimed.schedule(fault.schedule), JUDGEMENTS[fault.requirement]
    assert claim is not None
    all_of_them = judgement.foci(claim, claimed)

    def is_needed(name: str) -> bool:
        left = without(claimed, name)
        other = left.schedule(fault.schedule)
        assert other is not None
        return left != claimed and (name in _LOOKED_AT or judgement.foci(other, left) != all_of_them)

    return tuple(name for name in CLAIMS if is_needed(name))


def is_claimed(fault: Fault, claim: str, claimed: Capabilities) -> bool:
    """Whether the fault's requirement is still judged without `claim`."""
    left = without(claimed, claim)
    schedule = left.schedule(fault.schedule)
    assert schedule is not None
    return bool(JUDGEMENTS[fault.requirement].foci(schedule, left))


def _cases(identifier: str, schedule: str, claimed: Capabilities) -> Iterator[AnyCase]:
    limits = Limits(capabilities=claimed, min_ranks=1, max_ranks=_RANKS)
    return PipelineTarget(name="", limits=limits, profile=profile("smoke")).against(identifier, schedule)


def tried(fault: Fault, claim: str, claimed: Capabilities, pools: Pools) -> Record:
    """Judge the fault by its requirement, as an implementation that does not claim `claim`."""
    left, judgement = without(claimed, claim), JUDGEMENTS[fault.requirement]
    schedule, before = left.schedule(fault.schedule), claimed.schedule(fault.schedule)
    assert schedule is not None
    assert before is not None
    foci = judgement.foci(schedule, left)
    if not foci:
        return _record(fault, claim, "not claimed", refused=_refused(fault.requirement))
    lost = [focus.value for focus in judgement.foci(before, claimed) if focus not in foci]
    implementation = reference_without(fault.reference, claim)
    description = describe(pools, implementation)
    pools.idle_limit = description.capabilities.patience
    executor = Executor(implementation=implementation, description=description, pools=pools, time_limit=30.0)
    gauge, met, executions = Gauge(), 0, 0
    for case in _cases(fault.requirement, fault.schedule, left):
        if executions >= _MOST:
            break
        counted = Gauge()
        executions += 1
        try:
            execution = executor.execute(case, observe=judgement.observe)
            found = judge(requirement(fault.requirement), execution, executor, gauge=counted)
        except ContractError as error:
            return _record(fault, claim, "detected", detail=str(error), executions=executions)
        if found:
            detail = f"{found[0].status}: {found[0].finding.kind}"
            return _record(fault, claim, "detected", detail=detail, executions=executions)
        if judgement.is_met_by(case):
            met += 1
            gauge.count(counted.compared)
    if not gauge.compared:
        detail = judgement.why_nothing_was_compared([]) if not met else judgement.nothing
        refused = _refused(fault.requirement, core_only=False)
        return _record(
            fault, claim, "nothing compared", detail=detail, refused=refused, executions=executions
        )
    if lost:
        detail = f"without {', '.join(lost)}"
        return _record(fault, claim, "in part", detail=detail, executions=executions)
    told = set(weakened_by(left)) - set(weakened_by(claimed))
    if told:
        return _record(fault, claim, "named", detail="; ".join(sorted(told)), executions=executions)
    return _record(fault, claim, "ok", detail=f"{gauge.compared} compared", executions=executions)


def _record(
    fault: Fault,
    claim: str,
    outcome: str,
    *,
    detail: str = "",
    refused: tuple[str, ...] = (),
    executions: int = 0,
) -> Record:
    return Record(
        fault=fault.name,
        claim=claim,
        requirement=fault.requirement,
        outcome=outcome,
        detail=detail,
        refused=refused,
        executions=executions,
    )


@functools.cache
def _refused(identifier: str, *, core_only: bool = True) -> tuple[str, ...]:
    """The levels that a cell without a verdict refuses: unclaimed those of its core, nothing compared all it is in."""
    levels = [one for one in certification_levels() if one.kind == "pipeline"]
    if core_only:
        return tuple(
            one.name
            for one in levels
            if identifier in core_requirements(one)
            or (not one.not_claimed and identifier in {row.id for row in mandatory(one)})
        )
    return tuple(one.name for one in levels if identifier in {row.id for row in mandatory(one)})
