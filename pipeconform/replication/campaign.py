"""Judging a wrapper by the requirements of its chapter, over warm ranks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from pipeconform.errors import BadAdapterError, HarnessError, NothingJudgedError
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status, judge_verdicts
from pipeconform.replication.case import WrapperCase
from pipeconform.replication.judge import WrapperEvidence
from pipeconform.replication.observation import Expected, Question, Shown
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.replication.result import WrapperCell, WrapperViolation, violation_id
from pipeconform.replication.worker import Job
from pipeconform.run.pools import Pools
from pipeconform.run.verdict import Raised, Returned
from pipeconform.spec import Requirement
from pipeconform.wrapper import WrapperDescription

__all__ = ["PRELOAD", "WrapperCampaign", "describe"]

PRELOAD = ("torch", "torch.distributed", "pipeconform.replication.worker", "pipeconform.replication.oracle")
_RANK_TASK = "pipeconform.replication.worker:execute"
_DESCRIBE_TASK = "pipeconform.replication.worker:describe"
_ORACLE_TASK = "pipeconform.replication.oracle:answer"
_SEVERITY = (Status.CRASHED, Status.HUNG, Status.FAILED, Status.ERROR)


def describe(pools: Pools, reference: str) -> WrapperDescription:
    """Let a rank process import the implementation and describe it.

    Raises:
        BadAdapterError: with the words of the process that failed.
        HarnessError: it died or hung.
    """
    vector = pools.oracle.run(_DESCRIBE_TASK, reference.encode(), time_limit=120.0)
    verdict = vector[0]
    if isinstance(verdict, Raised):
        raise BadAdapterError(verdict.message)
    if not isinstance(verdict, Returned):
        raise HarnessError(f"describing {reference!r} failed:\n{vector.describe()}")
    try:
        return msgspec.msgpack.decode(verdict.value, type=WrapperDescription)
    except msgspec.ValidationError as error:
        raise BadAdapterError(f"--impl {reference!r}: describe() returned a wrong value: {error}") from error


@dataclass(frozen=True, kw_only=True)
class WrapperCampaign:
    """One wrapper, and the processes to judge it in. `time_limit` is in seconds for one case."""

    implementation: str
    """What the user wrote; `reference` is its full form."""
    reference: str
    description: WrapperDescription
    pools: Pools
    seed: int = 0
    time_limit: float = 60.0
    executed: Counter[str] = field(default_factory=Counter)
    """Executions by case digest."""

    def judge_cell(self, requirement: Requirement) -> WrapperCell:
        """Judge one requirement.

        Raises:
            HarnessError: the harness failed; no verdict can be drawn.
        """
        begun, claims = time.monotonic(), self.description.claims
        judgement = WRAPPER_JUDGEMENTS[requirement.id]
        if not judgement.needs <= claims.features:
            lacking = ", ".join(sorted(judgement.needs - claims.features))
            reason = f"{self.description.name} does not claim {lacking}"
            return WrapperCell(requirement=requirement.id, status="not_claimed", reason=reason)
        cases = judgement.drawn(claims, seed=self.seed)
        if not cases:
            raise NothingJudgedError(f"{requirement.id} is claimed, but no case lies inside the claims")
        first: dict[tuple[Status, str], tuple[WrapperCase, Outcome]] = {}
        seen: Counter[tuple[Status, str]] = Counter()
        executions = len(cases)
        for case in cases:
            for outcome in self.judge_case(requirement.id, case):
                key = (outcome.status, outcome.finding.kind)
                seen[key] += 1
                first.setdefault(key, (case, outcome))
        violations = []
        for key, (case, outcome) in first.items():
            executions += 1
            again = {(one.status, one.finding.kind) for one in self.judge_case(requirement.id, case)}
            name = violation_id(requirement.id, case, *key)
            violations.append(
                WrapperViolation(
                    id=name,
                    status=key[0].value,
                    signature=key[1],
                    message=outcome.finding.message,
                    case=case,
                    digest=case.digest,
                    confirmed=key in again,
                    occurrences=seen[key],
                    verdicts=outcome.verdicts,
                    replay=f"pipeconform wrappers replay {name} --impl {self.implementation}",
                )
            )
        confirmed = [Status(one.status) for one in violations if one.confirmed]
        worst = min(confirmed, key=_SEVERITY.index, default=Status.PASSED)
        return WrapperCell(
            requirement=requirement.id,
            status="flaky" if violations and not confirmed else worst.value,
            judgements=len(cases),
            executions=executions,
            seconds=round(time.monotonic() - begun, 3),
            violations=tuple(violations),
        )

    def judge_case(self, requirement: str, case: WrapperCase) -> tuple[Outcome, ...]:
        """Execute a case and judge it by one requirement; empty when that is met."""
        self.executed[case.digest] += 1
        pool = self.pools.of_size(case.ranks)
        payload = msgspec.msgpack.encode(Job(implementation=self.reference, case=case))
        vector = pool.run(_RANK_TASK, payload, time_limit=self.time_limit)
        ended = judge_verdicts(vector)
        if ended is not None:
            return (ended,)
        shown = tuple(msgspec.msgpack.decode(value, type=Shown) for value in vector.values)
        if any(one.failed is not None for one in shown):
            pool.restart()  # what a failed step left under way must not meet the next case
        evidence = WrapperEvidence(
            case=case, claims=self.description.claims, shown=shown, expected=self._asked(case, shown)
        )
        table = vector.describe()
        found = list(_distinct(WRAPPER_JUDGEMENTS[requirement].judge(evidence)))
        return tuple(Outcome(_status_of(one), one, verdicts=table) for one in found)

    def _asked(self, case: WrapperCase, shown: tuple[Shown, ...]) -> Callable[[], Expected]:
        def ask() -> Expected:
            complete = all(len(one.steps) == case.num_steps(one.rank) for one in shown)
            steps = len(case.steps) if complete else 0
            before = tuple(
                tuple(one.steps[i].before if i < len(one.steps) else {} for one in shown)
                for i in range(steps)
            )
            question = msgspec.msgpack.encode(Question(case=case, before=before))
            vector = self.pools.oracle.run(_ORACLE_TASK, question, time_limit=self.time_limit)
            if not vector.ok:
                raise HarnessError(f"the oracle failed on case {case.digest}:\n{vector.explain()}")
            return msgspec.msgpack.decode(vector.values[0], type=Expected)

        return ask


def _status_of(finding: Finding) -> Status:
    return Status.ERROR if finding.kind.startswith(("raised ", "claimed, but")) else Status.FAILED


def _distinct(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first finding of every kind."""
    kinds: set[str] = set()
    for finding in findings:
        if finding.kind not in kinds:
            kinds.add(finding.kind)
            yield finding
