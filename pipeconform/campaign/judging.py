"""Judges one execution by one requirement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from pipeconform.adapter import Feature, laid_out
from pipeconform.bounds.gauge import Gauge
from pipeconform.campaign.blame import blamed, is_no_answer
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.case.case import Case
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.errors import ContractError
from pipeconform.execute.implementation import module_of
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.lifecycle import repeats_exactly
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.refusals import Refusal, texts_of
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.timeline import executed
from pipeconform.observe.observation import Failed
from pipeconform.ranks.verdict import Cause, Raised, Returned, Stuck
from pipeconform.spec import Requirement

__all__ = ["judge", "num_repetitions"]

_NOT_WORKING = "the adapter, or what it needs, does not work (rank {rank}): {reason}"
_CONTRACT = f"{ContractError.__module__}.{ContractError.__qualname__}"


def judge(
    requirement: Requirement,
    execution: Execution,
    executor: Executor,
    *,
    thorough: bool = True,
    anew: bool = True,
    gauge: Gauge | None = None,
) -> tuple[Outcome, ...]:
    """The violations of `requirement` in an execution; empty when it is met.

    A requirement about determinism executes the case again, in the same processes and, if `anew`, in new ones. Unless
    `thorough`, a difference far beyond rounding counts without computing its bound. `gauge` records how much was
    compared, and how close accepted values came to their bounds.

    Raises:
        ContractError: the adapter broke its contract, which says nothing about the implementation.
    """
    _require_contract(execution)
    gauge = gauge or Gauge()
    aftermath = JUDGEMENTS[requirement.id].aftermath
    if aftermath is not None:
        _require_engine_beside_mistakes(execution, executor)
        return tuple(aftermath(_aftermath(execution, executor, gauge)))
    of_refusal = JUDGEMENTS[requirement.id].refused
    if of_refusal is not None:
        _require_engine_beside_mistakes(execution, executor)
        return tuple(of_refusal(_refusal(execution, executor, gauge)))
    ended = execution.outcome()
    if ended is not None:
        case = execution.case
        outside = not _is_claimed(case, executor)
        refused = _raised_everywhere(execution, ended, echoes=JUDGEMENTS[requirement.id].echoes)
        if JUDGEMENTS[requirement.id].anywhere:
            refused = refused or _raised_in_time(execution, ended, executor)
        tolerated = requirement.tolerates_errors and (
            ((outside or _may_refuse(requirement, case, executor)) and refused)
            or (outside and _unsupported_everywhere(execution))
        )
        if tolerated:
            gauge.count(len(execution.verdicts))
            return tuple(_unclear(requirement, execution))
        _require_engine(execution, executor)
        return (replace(ended, verdicts=execution.verdicts.describe()),)
    evidence = executor.evidence(execution, thorough=thorough, gauge=gauge)
    found = list(JUDGEMENTS[requirement.id].judge(evidence))
    if any(finding.mismatch is not None and finding.mismatch.kind == "value" for finding in found):
        copied = executor.evidence(execution, thorough=thorough, copied=True, gauge=gauge)
        found = min(found, list(JUDGEMENTS[requirement.id].judge(copied)), key=len)
    observed = "timeline" in JUDGEMENTS[requirement.id].observe
    outcomes = [_with_timeline(finding, evidence, observed=observed) for finding in found]
    if JUDGEMENTS[requirement.id].repeats:
        outcomes.extend(_repeated(execution.case, executor, anew=anew, gauge=gauge))
    table = execution.verdicts.describe()
    return tuple(replace(outcome, verdicts=table) for outcome in outcomes)


def _aftermath(execution: Execution, executor: Executor, gauge: Gauge) -> Aftermath:
    right = msgspec.structs.replace(execution, case=execution.case.without_mistakes)
    return Aftermath(
        case=execution.case,
        errors=executor.description.errors,
        verdicts=execution.verdicts,
        failed=execution.failed,
        evidence=executor.evidence(right, gauge=gauge) if execution.verdicts.ok else None,
        as_mistaken=lambda: executor.as_mistaken(execution),
        against=lambda case: executor.as_mistaken(msgspec.structs.replace(execution, case=case)),
        gauge=gauge,
    )


def _with_timeline(finding: Finding, evidence: Evidence, *, observed: bool) -> Outcome:
    """The outcome of a finding, with the timeline of its step if it was observed."""
    if not observed or finding.step is None:
        return Outcome(Status.FAILED, finding)
    ranks = sorted(executed(evidence, finding.step), key=lambda one: one.pipeline_rank)
    wrong = next((one.pipeline_rank for one in ranks if one.rank == finding.rank), None)
    return Outcome(
        Status.FAILED,
        finding,
        timeline=tuple(tuple(map(str, one.actions)) for one in ranks),
        first_wrong=None if wrong is None or finding.position is None else (wrong, finding.position),
    )


def _unclear(requirement: Requirement, execution: Execution) -> Iterator[Outcome]:
    """The defects in the message of a refusal."""
    check = JUDGEMENTS[requirement.id].refusal
    texts = texts_of(one for one in execution.verdicts if isinstance(one, Raised))
    for finding in check(execution.case, texts) if check is not None else ():
        yield Outcome(Status.FAILED, finding, verdicts=execution.verdicts.describe())


def _require_contract(execution: Execution) -> None:
    for rank, verdict in enumerate(execution.verdicts):
        if isinstance(verdict, Raised) and verdict.type == _CONTRACT:
            raise ContractError(f"the adapter broke its contract (rank {rank}): {verdict.message}")


def _require_engine(execution: Execution, executor: Executor) -> None:
    """Refuse to judge an exception that the adapter or this machine caused.

    Raises:
        ContractError: the rank that failed first raised such an exception.
    """
    rank = execution.verdicts.first_failure
    verdict = None if rank is None else execution.verdicts[rank]
    if isinstance(verdict, Raised) and (reason := _blamed(verdict, executor)):
        raise ContractError(_NOT_WORKING.format(rank=rank, reason=reason))


def _require_engine_beside_mistakes(execution: Execution, executor: Executor) -> None:
    """Refuse to judge what the adapter or this machine caused in a case in which something is wrong on purpose.

    What an adapter raises there may be its answer, unless it raises without the mistake, too.

    Raises:
        ContractError: a rank raised such an exception.
    """
    ended = {rank: one for rank, one in enumerate(execution.verdicts) if isinstance(one, Raised)}
    for rank, one in (ended | {rank: _as_raised(one) for rank, one in execution.failed.items()}).items():
        if not (reason := _blamed(one, executor)):
            continue
        if is_no_answer(one):
            raise ContractError(_NOT_WORKING.format(rank=rank, reason=reason))
        right = execution.case.without_mistakes
        if right != execution.case:
            _require_engine(executor.repeat(right), executor)
        return


def _as_raised(failed: Failed) -> Raised:
    causes = tuple(Cause(*one) for one in failed.causes)
    return Raised(type=failed.type, message=failed.message, causes=causes, frames=failed.frames)


def _blamed(raised: Raised, executor: Executor) -> str:
    where = module_of(executor.implementation.rpartition(":")[0])
    return blamed(raised, adapter=where, engine=executor.description.packages)


def _may_refuse(requirement: Requirement, case: Case, executor: Executor) -> bool:
    """Whether the case is about something that the implementation has not claimed and may refuse."""
    found = traits(case) & JUDGEMENTS[requirement.id].tolerates
    claimed = executor.claimed_for(case).features
    return bool(found) and not (Focus.UNEVEN in found and Feature.UNEVEN_BATCHES in claimed)


def _raised_everywhere(execution: Execution, ended: Outcome, *, echoes: bool) -> bool:
    """Whether every pipeline rank raised an error; unless `echoes`, each an error of its own.

    With `echoes`, a rank that is stuck counts as well: it waits for a rank that raised, whose process the runner keeps
    alive, so that no closed connection ends the wait.
    """
    members = set(execution.case.world.pipeline_ranks)
    return ended.status is Status.ERROR and all(
        (isinstance(one, Raised) and (echoes or not one.is_echo)) or (echoes and isinstance(one, Stuck))
        for rank, one in enumerate(execution.verdicts)
        if rank in members
    )


def _raised_in_time(execution: Execution, ended: Outcome, executor: Executor) -> bool:
    """Whether a pipeline rank raised an error of its own, and no rank that holds outputs returned any."""
    case, claims = execution.case, executor.claimed_for(execution.case)
    claim, members = claims.schedule(case.schedule), tuple(case.world.pipeline_ranks)
    if ended.status is not Status.ERROR or claim is None:
        return False
    placed = laid_out(claim.placement, num_ranks=case.num_ranks, num_stages=case.num_stages)
    holders = placed[-1] if claims.outputs_on == "last_stage" else range(case.num_ranks)
    own = any(isinstance(one, Raised) and not one.is_echo for one in execution.verdicts)
    return own and not any(isinstance(execution.verdicts[members[one]], Returned) for one in holders)


def _refusal(execution: Execution, executor: Executor, gauge: Gauge) -> Refusal:
    return Refusal(
        case=execution.case,
        capabilities=executor.claimed_for(execution.case),
        verdicts=execution.verdicts,
        unsupported=_unsupported_everywhere(execution),
        gauge=gauge,
    )


def _is_claimed(case: Case, executor: Executor) -> bool:
    """Whether the schedule's claim covers the case's sizes."""
    claim = executor.capabilities.schedule(case.schedule)
    return claim is not None and all(
        claim.takes(
            num_ranks=case.num_ranks,
            stages_per_rank=case.stages_per_rank,
            num_microbatches=run.num_microbatches,
        )
        for run in case.runs
    )


def _unsupported_everywhere(execution: Execution) -> bool:
    """Whether every pipeline rank answered the plan with `Unsupported`."""
    members = [one for one in execution.shown if one.pipeline_rank is not None]
    return bool(members) and all(one.unsupported is not None for one in members)


def _repeated(case: Case, executor: Executor, *, anew: bool, gauge: Gauge) -> Iterator[Outcome]:
    """Execute the case several times and compare; the stored execution may come from another worker's processes."""
    first = executor.repeat(case)
    others = [(executor.repeat(case), "in the same processes")]
    if anew:
        executor.restart(case)
        others.append((executor.repeat(case), "in new processes"))
    for other, how in others:
        ended = first.outcome() or other.outcome()
        if ended is not None:
            yield ended
            return
        for finding in repeats_exactly(first.shown, other.shown, how, gauge=gauge):
            yield Outcome(Status.FAILED, finding)


def num_repetitions(*, anew: bool) -> int:
    """How many times a requirement about determinism executes a case."""
    return 3 if anew else 2
