"""Judges one cell: stored cases first, then the corpus, then a search beyond it; then shrinks every violation.

The campaign's target knows the cell's cases; its runners execute and judge them.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple

import msgspec
from hypothesis import target

from pipeconform.campaign.blocking import Answers, Explained, explained
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.corpus import Drawable, run_strategy
from pipeconform.campaign.kept import JudgedCases
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.campaign.runner import CaseT, ExecutionT, Judged, Runner
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
from pipeconform.supported import torch_version

__all__ = ["judge_cell"]

_AGAIN = 2
"""Which execution of a case shows whether it shows again what its first one showed."""
_RERUNS = 4
"""Further executions of a case that did not show its violation every time."""
_HANGS = 20
"""Executions for shrinking all hangs of a cell together: each costs a wait and new processes."""
_COST: Mapping[Status, int] = {Status.HUNG: 20, Status.CRASHED: 6, Status.ERROR: 3}
"""What an execution with this end costs, in executions of a case that only computes wrong values, which cost 1."""


class Key(NamedTuple):
    """What distinguishes two violations of a cell; `expected` is the label of the expectation that covers it."""

    status: Status
    signature: str
    expected: str = ""


class _First(NamedTuple, Generic[CaseT]):
    """Where a violation was first found; `corpus` is None for a stored case."""

    corpus: Drawable[CaseT] | None
    purpose: str
    case: CaseT
    outcome: Outcome
    minimal: bool = False


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
        error.case = run.at
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
        self.judgements = self.executions = self.compared = 0
        self.unclaimed: set[str] = set()
        self.digests: dict[str, CaseT] = {}
        self.at: CaseT | None = None
        """The case that was executed last."""
        self.renewed: set[int] = set()
        """Sizes of worlds whose processes were already replaced to compare old processes with new ones."""
        self.counts: Counter[str] = Counter()
        self.microbatches: Counter[str] = Counter()
        self.expected = tuple(
            entry
            for entry in campaign.expectations
            if entry.is_about(
                requirement=self.requirement,
                schedule=self.column,
                device=campaign.device,
                torch=torch_version() or "",
            )
        )
        self.first: dict[Key, _First[CaseT]] = {}
        self.occurrences: Counter[Key] = Counter()
        self.largest: dict[Key, tuple[CaseT, Outcome]] = {}
        self.stale: list[str] = []
        self.hangs_left = _HANGS
        profile = campaign.profile
        self.cost_left = profile.later_cost if asked.is_later else profile.cell_cost
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
            executions=self.executions,
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
        for entry in self.expected:
            for stored in entry.stored:
                case = self.asked.own(stored.case)
                if case is None:
                    continue
                found = self.runner.judged(self.asked.row, case, self._execute(case)).outcomes
                shown = {self._key(case, o): o for o in reversed(found)}
                key = next((key for key in shown if key.expected == entry.label), None)
                if key is None and not entry.is_chance:
                    self.stale.append(stored.path)
                if key is not None:
                    key, outcome = _as_expected(key, shown[key], stored)
                    self.first.setdefault(key, _First(None, "stored", case, outcome))

    def _replay_earlier(self) -> None:
        """Execute the previous run's violations, which are already small; report those that show again unchanged."""
        for known in self.campaign.earlier.of((self.requirement, self.column, self.variant)):
            case = self.asked.own(known.case) if self.campaign.target.allows(known.case) else None
            if case is None or not self.asked.applies(case):
                continue
            self._note(None, "earlier", case, self._execute(case))
            key = Key(Status(known.status), known.signature)
            first = self.first.get(key)
            if known.confirmed and first is not None and first.case == case:
                self.first[key] = first._replace(purpose="stored", minimal=known.minimal)

    def _key(self, case: CaseT, outcome: Outcome) -> Key:
        """The key of an outcome; it names the expectation that covers the outcome, if any does."""
        status, signature = outcome.status, outcome.finding.kind
        covering = (one.label for one in self.expected if one.shows(status.value, signature, case=case))
        return Key(status, signature, next(covering, ""))

    def _judge_drawn(self, corpus: Drawable[CaseT], case: CaseT) -> None:
        """Judge a case of the corpus, reusing the execution of an earlier requirement if there is one."""
        self._note(corpus, "corpus", case, self._executed(case))

    def _executed(
        self, case: CaseT, rows: Sequence[Requirement] = (), *, nth: int | None = 1, hung: bool = False
    ) -> ExecutionT:
        """What the case showed when it was executed for the first, second or third time, by any requirement.

        It was watched as `rows` need it, or as this cell's requirement does. Without `nth`, it is executed anew.
        """
        rows, self.at = rows or (self.asked.row,), case
        name = self.runner.stored_as(case, rows)
        if name is None or nth is None:
            return self._execute(case, rows, hung=hung)
        key = f"{self.variant}-{name}-{nth}{'-waits' if hung else ''}"
        found = self.campaign.store.get(key, self.runner.executions)
        if found is None:
            found = self._execute(case, rows, hung=hung)
            self.campaign.store.put(key, found)
        return found

    def _search(self) -> None:
        for corpus in self.corpora:

            def body(case: CaseT, corpus: Drawable[CaseT] = corpus) -> None:
                if self.asked.applies(case) and case.digest not in self.digests:
                    judged = self._note(corpus, "search", case, self._execute(case))
                    self.told[case.digest] = self.asked.heights(case, worst_ratio=judged.worst_ratio)
                self._steer(case)

            each = -(-self.campaign.profile.search // len(self.corpora))
            purpose = f"search {self.requirement}"
            run_strategy(corpus, body, max_examples=each, purpose=purpose, steered=True)

    def _steer(self, case: CaseT) -> None:
        for name, height in self.told.get(case.digest, {}).items():
            target(height, label=name)

    def _execute(self, case: CaseT, rows: Sequence[Requirement] = (), *, hung: bool = False) -> ExecutionT:
        self.executions += 1
        self.at = case
        execution = self.runner.execute(case, rows or (self.asked.row,), hung=hung)
        self.campaign.count(case)
        self._tell("judging")
        return execution

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
            self.executions += repetitions
            self.campaign.count(case, times=repetitions)
        self.judgements += 1
        self.compared += judged.compared
        self.unclaimed |= judged.unclaimed
        self.digests[case.digest] = case
        self.counts[f"p={case.num_ranks},v={case.stages_per_rank}"] += 1
        self.microbatches.update(self.campaign.target.batch_classes(case))
        for key, outcome in {self._key(case, o): o for o in reversed(judged.outcomes)}.items():
            self.occurrences[key] += 1
            self.first.setdefault(key, _First(corpus, purpose, case, outcome))
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
            if {self._key(case, o) for o in judged.outcomes} <= self.first.keys():
                return judged
        return self.runner.judged(self.asked.row, case, execution, anew=anew)

    def _violations(self) -> Iterator[Violation]:
        for key, first in self.first.items():
            small = key.expected or first.corpus is None
            smallest = self._as_found(key, first) if small else self._as_small_as_known(key, first)
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
                nth = None if case.digest in again else _AGAIN
                again.add(case.digest)
            for together in self.runner.apart(new) if new else ():
                self._tell("controlling")
                execution = self._executed(case, together, nth=nth, hung=hung)
                judged = {row: self.runner.judged(row, case, execution, anew=False) for row in together}
                known.update({row.id: one.outcomes for row, one in judged.items()})
            return known

        return explained(self.asked, smallest.case, smallest.outcome, ask=ask)

    def _as_found(self, key: Key, first: _First[CaseT]) -> Smallest[CaseT]:
        """An expected violation, or one from the previous run, which is not shrunk."""
        stored = first.purpose == "stored"  # seen in an earlier run, and again in this one
        again = None if stored else self._check(key, first.case, nth=_AGAIN, thorough=True)
        return Smallest(
            case=first.case,
            outcome=first.outcome,
            minimal=first.minimal,
            confirmed=stored or again is not None,
            executions=0,
            reruns=0 if stored else 1,
            shown_again=int(again is not None),
        )

    def _check(self, key: Key, candidate: CaseT, *, nth: int = 1, thorough: bool = False) -> Outcome | None:
        """What a candidate shows of the same kind when it is executed for the first, second … time, if anything."""
        if not self.asked.applies(candidate):
            return None
        return self._shown(key, candidate, nth=nth, thorough=thorough).get(key)

    def _shown(self, key: Key, case: CaseT, *, nth: int | None, thorough: bool) -> dict[Key, Outcome]:
        """The first outcome of every kind in an execution of a case that should show `key`.

        The violations of a cell, and of requirements that observe alike, are often made small by the same candidates,
        so the first, second and third execution of a case is shared by all of them; without `nth`, it is a new one.
        """
        self._tell("shrinking")
        # after a hang, communication is recorded: it shows which rank waits for which, and proves a hang sooner
        hung = key.status is Status.HUNG
        execution = self._executed(case, nth=nth, hung=hung)
        judged = self.runner.judged(self.asked.row, case, execution, thorough=thorough)
        return {self._key(case, o): o for o in reversed(judged.outcomes)}

    def _as_small_as_known(self, key: Key, first: _First[CaseT]) -> Smallest[CaseT]:
        """The case that was found for the same violation under another variant, if it shows it; else the smallest."""
        about = self.requirement, self.column, key.status, key.signature
        known = self.campaign.smallest.get(about)
        if known is not None and self._check(key, known.case) is not None:
            sure = self._check(key, known.case, nth=_AGAIN, thorough=True)
            if sure is not None:
                return Smallest(
                    case=known.case, outcome=sure, minimal=known.minimal, confirmed=True, executions=1
                )
        smallest = self._smallest(key, first)
        if smallest.confirmed:
            self.campaign.smallest[about] = smallest
        return smallest

    def _smallest(self, key: Key, first: _First[CaseT]) -> Smallest[CaseT]:
        profile, case, outcome = self.campaign.profile, first.case, first.outcome
        assert first.corpus is not None, "only expected violations come from stored cases"

        seen: list[dict[Key, Outcome]] = []

        def check(candidate: CaseT) -> Outcome | None:
            return again(nth=_AGAIN) if candidate == case else self._check(key, candidate)

        def again(*, nth: int | None, thorough: bool = False) -> Outcome | None:
            seen.append(self._shown(key, case, nth=nth, thorough=thorough))
            return seen[-1].get(key)

        hangs, cost = outcome.status is Status.HUNG, _COST.get(outcome.status, 1)
        most = min(profile.shrink_cost, self.cost_left) // cost
        budget = Budget(executions=min(self.hangs_left, most) if hangs else most)
        smallest = self.asked.smallest(first.corpus, case, outcome, check, budget=budget)
        self.cost_left -= smallest.executions * cost
        self.hangs_left -= smallest.executions if hangs else 0
        # candidates were judged without bounds; what is reported is judged with them
        sure = None
        if smallest.confirmed and smallest.case == case:
            sure = again(nth=_AGAIN + 1, thorough=True)
        elif smallest.confirmed:
            sure = self._check(key, smallest.case, nth=_AGAIN, thorough=True)
        if sure is not None:
            return dataclasses.replace(smallest, outcome=sure)
        # same case, same seed, another verdict: flaky, unless every execution is wrong in some way
        if not seen:
            again(nth=_AGAIN, thorough=True)
        for _ in range(_RERUNS):
            again(nth=None, thorough=True)
        same, otherwise = sum(key in shown for shown in seen), sum(_instead(key, shown) for shown in seen)
        return Smallest(
            case=case,
            outcome=outcome,
            minimal=False,
            confirmed=same + otherwise == len(seen),
            executions=smallest.executions,
            reruns=len(seen),
            shown_again=same,
            shown_otherwise=otherwise,
        )

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
        again = self._check(key, case, nth=_AGAIN, thorough=True)
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
            self.executions += 1
            self.campaign.count(case)
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


def _instead(key: Key, shown: Mapping[Key, Outcome]) -> bool:
    """Whether an execution went wrong in another way that hides `key` or takes its place.

    Wrong values do not hide each other: a wrong value that is missing was right this time, whatever else is wrong.
    """
    return key not in shown and any({key.status, other.status} != {Status.FAILED} for other in shown)


def _as_expected(key: Key, outcome: Outcome, stored: StoredCase) -> tuple[Key, Outcome]:
    """The outcome of a stored case; it is not expected if the case showed another violation of the same kind before."""
    finding = outcome.finding
    if not stored.text or line_of(finding.message, finding.where()) == stored.text:
        return key, outcome
    message = f"{finding.message}\nexpected of {stored.path}: {stored.text}"
    return key._replace(expected=""), dataclasses.replace(
        outcome, finding=dataclasses.replace(finding, message=message)
    )
