"""Judges one cell: stored cases first, then the corpus, then a search beyond it; then shrinks every violation.

The campaign's target knows the cell's cases; its runners execute and judge them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic

import msgspec
from hypothesis import target

from pipeconform.campaign.blocking import Answers, Explained, explained
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.corpus import Drawable, run_strategy
from pipeconform.campaign.executions import CellExecutions, Key
from pipeconform.campaign.kept import JudgedCases
from pipeconform.campaign.minimise import Smallest
from pipeconform.campaign.runner import CaseT, ExecutionT, Judged, Runner
from pipeconform.campaign.shrinking import AGAIN, First, Shrinking
from pipeconform.campaign.status import blocked_by, identifier_of, status_of
from pipeconform.campaign.target import Asked, NotAsked
from pipeconform.case.any_case import AnyCase, world_sizes
from pipeconform.errors import ContractError, HarnessError, NothingJudgedError
from pipeconform.gate.expectations import StoredCase
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.observe.localisation import Localisation
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell, Control, Shown, Violation, line_of
from pipeconform.spec import Requirement

__all__ = ["judge_cell"]


def judge_cell(campaign: Campaign, row: Requirement, column: str, variant: str = "default") -> Cell:
    """Judge one requirement in one column of the table, or report why it is not judged.

    Raises:
        ContractError: the adapter broke its contract, so there is no verdict; its `case` says in which case.
        HarnessError: the harness failed, in this case, so there is no verdict.
        NothingJudgedError: the requirement is claimed, but no case of the corpus applies.
    """
    asked = campaign.ask(row, column, variant)
    if isinstance(asked, NotAsked):
        return Cell(
            requirement=row.id, schedule=column, variant=variant, status=asked.status, reason=asked.reason
        )
    run = _CellRun(campaign, asked, campaign.runners[variant], variant=variant)
    try:
        return run.judge()
    except (ContractError, HarnessError) as error:
        error.case = run.executions.last
        raise


class _CellRun(Generic[CaseT, ExecutionT]):
    """The judging of one cell."""

    def __init__(
        self,
        campaign: Campaign,
        asked: Asked[CaseT],
        runner: Runner[CaseT, ExecutionT],
        *,
        variant: str,
    ) -> None:
        self.campaign, self.asked, self.runner, self.variant = campaign, asked, runner, variant
        self.requirement, self.column = asked.row.id, asked.column
        self.corpora = tuple(asked.corpora)
        self.executions = CellExecutions(campaign, asked, runner, variant=variant, tell=self._tell)
        self.shrinking = Shrinking(self.executions)
        self.judgements = self.compared = 0
        self.unclaimed: set[str] = set()
        self.digests: dict[str, CaseT] = {}
        self.renewed: set[int] = set()
        """Sizes of worlds whose processes were already replaced to compare old processes with new ones."""
        self.counts: Counter[str] = Counter()
        self.microbatches: Counter[str] = Counter()
        self.first: dict[Key, First[CaseT]] = {}
        self.occurrences: Counter[Key] = Counter()
        self.largest: dict[Key, tuple[CaseT, Outcome]] = {}
        self.stale: list[str] = []
        self.worst_ratio: float | None = None
        self.told: dict[str, Mapping[str, float]] = {}
        """By digest, the quantities reported to Hypothesis for a case of the search."""

    def judge(self) -> Cell:
        """Judge the cell.

        Raises:
            HarnessError: the harness failed, so there is no verdict.
            NothingJudgedError: no case of the corpora applies.
        """
        begun = time.monotonic()
        self._replay_expected()
        self._replay_earlier()
        for corpus in self.corpora:
            for case in corpus.drawn():
                if self.asked.applies(case):
                    self._judge_drawn(corpus, case)
        if self.campaign.profile.search:
            self._search()
        if not self.judgements:
            raise NothingJudgedError(
                f"{self.requirement} under {self.column} is claimed, but none of the drawn cases applies: "
                f"raise --examples or widen --ranks"
            )
        self._keep()
        violations = tuple(self._violations())
        status, reason = status_of(violations, compared=self.compared), ""
        if status == "nothing_compared":
            reason = self.asked.why_nothing_was_compared(self.digests.values())
        elif status == "blocked":
            reason = blocked_by(violations)
        return Cell(
            requirement=self.requirement,
            schedule=self.column,
            variant=self.variant,
            status=status,
            reason=reason,
            judgements=self.judgements,
            compared=self.compared,
            unclaimed=tuple(sorted(self.unclaimed)),
            without=tuple(self.asked.without),
            executions=self.executions.number,
            distinct_cases=len(self.digests),
            counts=dict(sorted(self.counts.items())),
            microbatches=dict(sorted(self.microbatches.items())),
            seconds=round(time.monotonic() - begun, 3),
            worst_ratio=self.worst_ratio,
            violations=violations,
            stale=tuple(self.stale),
        )

    def _keep(self) -> None:
        if self.campaign.kept is not None:
            judged = JudgedCases(
                requirement=self.requirement,
                schedule=self.column,
                variant=self.variant,
                digests=tuple(self.digests),
            )
            self.campaign.kept.keep(judged, self.digests.values())

    def _replay_expected(self) -> None:
        """Execute the stored cases of expected failures, which need no search and no shrinking."""
        for entry in self.executions.expectations:
            for stored in entry.stored:
                case = self.asked.own(stored.case)
                if case is None:
                    continue
                found = self.runner.judged(self.asked.row, case, self.executions.anew(case)).outcomes
                shown = self.executions.keyed(case, found)
                key = next((key for key in shown if key.expected == entry.label), None)
                if key is None and not entry.is_chance:
                    self.stale.append(stored.path)
                if key is not None:
                    key, outcome = _as_expected(key, shown[key], stored)
                    self.first.setdefault(key, First(None, "stored", case, outcome))

    def _replay_earlier(self) -> None:
        """Execute the previous run's violations, which are already small; report those that show again unchanged."""
        for known in self.campaign.earlier.of((self.requirement, self.column, self.variant)):
            case = self.asked.own(known.case) if self.campaign.target.allows(known.case) else None
            if case is None or not self.asked.applies(case):
                continue
            self._note(None, "earlier", case, self.executions.anew(case))
            key = Key(Status(known.status), known.signature)
            first = self.first.get(key)
            if known.confirmed and first is not None and first.case == case:
                self.first[key] = first._replace(purpose="stored", minimal=known.minimal)

    def _judge_drawn(self, corpus: Drawable[CaseT], case: CaseT) -> None:
        """Judge a case of the corpus, reusing the execution of an earlier requirement if there is one."""
        self._note(corpus, "corpus", case, self.executions.shared(case))

    def _search(self) -> None:
        for corpus in self.corpora:

            def body(case: CaseT, corpus: Drawable[CaseT] = corpus) -> None:
                if self.asked.applies(case) and case.digest not in self.digests:
                    judged = self._note(corpus, "search", case, self.executions.anew(case))
                    self.told[case.digest] = self.asked.heights(case, worst_ratio=judged.worst_ratio)
                self._steer(case)

            each = -(-self.campaign.profile.search // len(self.corpora))
            purpose = f"search {self.requirement}"
            run_strategy(corpus, body, max_examples=each, purpose=purpose, steered=True)

    def _steer(self, case: CaseT) -> None:
        for name, height in self.told.get(case.digest, {}).items():
            target(height, label=name)

    def _note(
        self, corpus: Drawable[CaseT] | None, purpose: str, case: CaseT, execution: ExecutionT
    ) -> Judged:
        # new processes cost more than anything else: only once per cell and world size, except when shrinking
        processes = max(world_sizes(case))
        anew = processes not in self.renewed
        judged = self._judged(case, execution, anew=anew)
        repetitions = self.runner.repetitions(self.asked.row, execution, anew=anew)
        if repetitions:
            self.renewed.add(processes)
            self.executions.count(case, times=repetitions)
        self.judgements += 1
        self.compared += judged.compared
        self.unclaimed |= judged.unclaimed
        self.digests[case.digest] = case
        self.counts[f"p={case.num_ranks},v={case.stages_per_rank}"] += 1
        self.microbatches.update(self.campaign.target.batch_classes(case))
        for key, outcome in self.executions.keyed(case, judged.outcomes).items():
            self.occurrences[key] += 1
            self.first.setdefault(key, First(corpus, purpose, case, outcome))
            if key not in self.largest or _size(case) > _size(self.largest[key][0]):
                self.largest[key] = case, outcome
        if judged.worst_ratio is not None:
            self.worst_ratio = max(judged.worst_ratio, self.worst_ratio or 0.0)
        self._tell("judging")
        return judged

    def _judged(self, case: CaseT, execution: ExecutionT, *, anew: bool) -> Judged:
        """Judge an execution; skip the bounds if it only shows violations that were already judged with bounds."""
        if self.first and not self.asked.repeats:
            judged = self.runner.judged(self.asked.row, case, execution, thorough=False)
            if self.executions.keyed(case, judged.outcomes).keys() <= self.first.keys():
                return judged
        return self.runner.judged(self.asked.row, case, execution, anew=anew)

    def _violations(self) -> Iterator[Violation]:
        for key, first in self.first.items():
            smallest = self.shrinking.smallest(key, first)
            found = None if key.expected else self._explained(smallest)
            # a control that passes says nothing about what shows by chance only; one that explains it says why
            accused = found is None or found.control is None or not found.control.requirement
            if found is None or (accused and not smallest.confirmed):
                yield self._violation(key, smallest, control=None)
                continue
            smallest = dataclasses.replace(smallest, case=found.case, outcome=found.outcome)
            yield self._violation(key, smallest, control=found.control)

    def _explained(self, smallest: Smallest[CaseT]) -> Explained[CaseT]:
        """Execute the controls of a violation."""
        hung = smallest.outcome.status is Status.HUNG
        again: set[str] = set()
        """Digests of cases whose second execution was judged."""

        def ask(case: CaseT, rows: Sequence[Requirement], *, anew: bool = False) -> Answers:
            kept = self.campaign.answers.setdefault((self.variant, case.digest), {})
            known = {} if anew else kept
            new = [row for row in rows if row.id not in known]
            nth: int | None = 1
            if anew:  # the second execution of the smallest case was made already, when it was confirmed
                nth = None if case.digest in again else AGAIN
                again.add(case.digest)
            for together in self.runner.apart(new) if new else ():
                self._tell("controlling")
                execution = self.executions.shared(case, together, nth=nth, hung=hung)
                judged = {row: self.runner.judged(row, case, execution, anew=False) for row in together}
                known.update({row.id: one.outcomes for row, one in judged.items()})
            return known

        return explained(self.asked, smallest.case, smallest.outcome, ask=ask)

    def _violation(self, key: Key, smallest: Smallest[CaseT], *, control: Control | None) -> Violation:
        status, signature = key.status, key.signature
        finding, case = smallest.outcome.finding, smallest.case
        blocked = control is not None and bool(control.requirement)
        # the same defect may be expected at some sizes only
        apart = "" if not key.expected else "/expected"
        where = f"{self.requirement}:{self.column}:{self.variant}"
        identifier = identifier_of(where, f"{status}/{signature}{apart}")
        return Violation(
            id=identifier,
            status=status.value,
            signature=signature,
            message=finding.message,
            where=finding.where(),
            case=case,
            digest=case.digest,
            minimal=smallest.minimal,
            confirmed=smallest.confirmed,
            shrink_executions=smallest.executions,
            reruns=smallest.reruns,
            shown_again=smallest.shown_again,
            shown_otherwise=smallest.shown_otherwise,
            expected=key.expected,
            occurrences=self.occurrences[key],
            verdicts=smallest.outcome.verdicts,
            replay=f"pipeconform replay {identifier} --impl {self.campaign.implementation}",
            timeline=smallest.outcome.timeline,
            first_wrong=smallest.outcome.first_wrong,
            places=smallest.outcome.places,
            localisation=None if key.expected or blocked else self._localised(smallest),
            control=control,
            large=None if blocked else self._large(key, smallest),
        )

    def _large(self, key: Key, smallest: Smallest[CaseT]) -> Shown | None:
        """The largest drawn case, if it shows the same line again and that does not depend on values."""
        if (
            key not in self.largest
            or key.expected
            or key.status is not Status.FAILED
            or not smallest.confirmed
        ):
            return None
        case, outcome = self.largest[key]
        if case == smallest.case or self.runner.can_localise(outcome):
            return None
        line = line_of(outcome.finding.message, outcome.finding.where())
        again = self.shrinking.check(key, case, nth=AGAIN, thorough=True)
        if again is None or line_of(again.finding.message, again.finding.where()) != line:
            return None
        return Shown(case=case, line=line)

    def _localised(self, smallest: Smallest[CaseT]) -> Localisation | None:
        """Where values begin to be wrong; needs one more execution unless another requirement has the same case."""
        case, outcome = smallest.case, smallest.outcome
        if not self.runner.can_localise(outcome):
            return None
        known, key = self.campaign.localised, (self.variant, case.digest)
        if key not in known:
            self.executions.count(case)
            known[key] = self.runner.localised(case, (outcome,))
        return known[key]

    def _tell(self, doing: str) -> None:
        if self.campaign.listener is not None:
            self.campaign.listener(
                Progress(
                    requirement=self.requirement,
                    schedule=self.column,
                    doing=doing,
                    judged=self.judgements,
                    violations=len(self.first),
                )
            )


def _size(case: AnyCase) -> tuple[int, int, int]:
    """By ranks, then stages, then whatever else a case has."""
    return case.num_ranks, case.stages_per_rank, len(msgspec.json.encode(case))


def _as_expected(key: Key, outcome: Outcome, stored: StoredCase) -> tuple[Key, Outcome]:
    """The outcome of a stored case; it is not expected if the case showed another violation of the same kind before."""
    finding = outcome.finding
    if not stored.text or line_of(finding.message, finding.where()) == stored.text:
        return key, outcome
    message = f"{finding.message}\nexpected of {stored.path}: {stored.text}"
    return key._replace(expected=""), dataclasses.replace(
        outcome, finding=dataclasses.replace(finding, message=message)
    )
