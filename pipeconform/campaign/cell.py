"""Judging one cell: stored cases first, then the corpus, then a search beyond it, then every violation made small.

What a case is, how it is executed and what is wrong with an execution is known to a `Subject`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Generic, NamedTuple

from hypothesis import target

from pipeconform.campaign.corpus import CaseT, Drawable, run_strategy
from pipeconform.campaign.kept import JudgedCases
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.campaign.subject import ExecutionT, Judged, Run, Subject
from pipeconform.errors import NothingJudgedError
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.observe.localisation import Localisation
from pipeconform.report.progress import Progress
from pipeconform.report.result import SEVERITY, Cell, Violation
from pipeconform.report.result import Status as ResultStatus

__all__ = ["CellRun"]

_RERUNS = 4
"""Executions of a case that did not show its violation every time."""
_HANGS = 20
"""Executions to make a cell's hangs small, all of them together: each costs the processes that hang, and a wait."""


class Key(NamedTuple):
    """What tells two violations of a cell apart; `expected` is the label of the entry that covers it."""

    status: Status
    signature: str
    expected: str = ""


class _First(NamedTuple, Generic[CaseT]):
    """Where a violation was met first; no corpus: in a stored case."""

    corpus: Drawable[CaseT] | None
    purpose: str
    case: CaseT
    outcome: Outcome
    minimal: bool = False


class CellRun(Generic[CaseT, ExecutionT]):
    """The judging of one cell."""

    def __init__(self, run: Run, subject: Subject[CaseT, ExecutionT]) -> None:
        self.run, self.subject = run, subject
        self.corpora = tuple(subject.corpora())
        self.judgements = self.executions = self.compared = 0
        self.unclaimed: set[str] = set()
        self.digests: dict[str, CaseT] = {}
        self.renewed: set[int] = set()
        """Sizes of worlds whose processes were replaced to compare old and new ones."""
        self.counts: Counter[str] = Counter()
        self.microbatches: Counter[str] = Counter()
        self.expected = tuple(
            entry
            for entry in run.expectations
            if entry.is_about(requirement=subject.requirement, schedule=subject.schedule, device=run.device)
        )
        self.first: dict[Key, _First[CaseT]] = {}
        self.occurrences: Counter[Key] = Counter()
        self.stale: list[str] = []
        self.hangs_left = _HANGS
        self.worst_ratio: float | None = None
        self.told: dict[str, Mapping[str, float]] = {}
        """By digest what Hypothesis was told about a case of the search."""

    def judge(self) -> Cell:
        """Judge it.

        Raises:
            HarnessError: the harness failed; no verdict can be drawn.
            NothingJudgedError: no case of the corpora applies.
        """
        begun, subject = time.monotonic(), self.subject
        self._replay_expected()
        self._replay_earlier()
        for corpus in self.corpora:
            for case in subject.drawn(corpus):
                if subject.applies(case):
                    self._judge_drawn(corpus, case)
        if self.run.profile.search:
            self._search()
        if not self.judgements:
            raise NothingJudgedError(
                f"{subject.requirement} under {subject.schedule} is claimed, but none of the drawn cases applies: "
                f"raise --examples or widen --ranks"
            )
        self._keep()
        violations = tuple(self._violations())
        status, reason = _status(violations), ""
        if status == "passed" and not self.compared:
            # a judgement whose comparisons were never made has met nothing
            status, reason = "nothing_compared", subject.why_nothing_was_compared(self.digests.values())
        return Cell(
            requirement=subject.requirement,
            schedule=subject.schedule,
            variant=subject.variant,
            status=status,
            reason=reason,
            judgements=self.judgements,
            compared=self.compared,
            unclaimed=tuple(sorted(self.unclaimed)),
            without=tuple(subject.without),
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
        if self.run.kept is not None:
            judged = JudgedCases(
                requirement=self.subject.requirement,
                schedule=self.subject.schedule,
                variant=self.subject.variant,
                digests=tuple(self.digests),
            )
            self.run.kept.keep(judged, self.digests.values())

    def _replay_expected(self) -> None:
        """Execute the stored cases of expected failures: they need no search and no shrinking."""
        for entry in self.expected:
            for stored in entry.stored:
                case = self.subject.own(stored.case)
                if case is None:
                    continue
                found = self.subject.judged(case, self._execute(case), thorough=True, anew=True).outcomes
                shown = {self._key(case, o): o for o in reversed(found)}
                key = next((key for key in shown if key.expected == entry.label), None)
                if key is None:
                    self.stale.append(stored.path)
                else:
                    self.first.setdefault(key, _First(None, "stored", case, shown[key]))

    def _replay_earlier(self) -> None:
        """Execute what the run before found; it is small already, and is reported as it is if it shows the same."""
        for known, case in self.subject.earlier():
            if not self.subject.applies(case):
                continue
            self._note(None, "earlier", case, self._execute(case))
            key = Key(Status(known.status), known.signature)
            first = self.first.get(key)
            if known.confirmed and first is not None and first.case == case:
                self.first[key] = first._replace(purpose="stored", minimal=known.minimal)

    def _key(self, case: CaseT, outcome: Outcome) -> Key:
        """What an outcome is counted as; another defect inside an expected one has a key of its own."""
        status, signature = outcome.status, outcome.finding.kind
        p, v = case.num_ranks, case.stages_per_rank
        for entry in self.expected:
            if (entry.status, entry.signature) == (status.value, signature) and entry.covers_size(
                num_ranks=p, stages_per_rank=v
            ):
                return Key(status, signature, entry.label)
        return Key(status, signature)

    def _judge_drawn(self, corpus: Drawable[CaseT], case: CaseT) -> None:
        """Judge a case of the corpus, executed by whichever requirement came first."""
        execution = self.subject.known(case)
        if execution is None:
            execution = self._execute(case)
            self.subject.keep(case, execution)
        self._note(corpus, "corpus", case, execution)

    def _search(self) -> None:
        for corpus in self.corpora:

            def body(case: CaseT, corpus: Drawable[CaseT] = corpus) -> None:
                if self.subject.applies(case) and case.digest not in self.digests:
                    judged = self._note(corpus, "search", case, self._execute(case))
                    self.told[case.digest] = self.subject.heights(case, judged)
                self._steer(case)

            each = -(-self.run.profile.search // len(self.corpora))
            purpose = f"search {self.subject.requirement}"
            run_strategy(corpus, body, max_examples=each, purpose=purpose, steered=True)

    def _steer(self, case: CaseT) -> None:
        for name, height in self.told.get(case.digest, {}).items():
            target(height, label=name)

    def _execute(self, case: CaseT, *, hung: bool = False) -> ExecutionT:
        self.executions += 1
        execution = self.subject.execute(case, hung=hung)
        self._tell("judging")
        return execution

    def _note(
        self, corpus: Drawable[CaseT] | None, purpose: str, case: CaseT, execution: ExecutionT
    ) -> Judged:
        # new processes cost more than everything else: once per cell and size of the world, unless shrinking
        anew = self.subject.num_processes(case) not in self.renewed
        judged = self._judged(case, execution, anew=anew)
        repetitions = self.subject.repetitions(case, execution, anew=anew)
        if repetitions:
            self.renewed.add(self.subject.num_processes(case))
            self.executions += repetitions
        self.judgements += 1
        self.compared += judged.compared
        self.unclaimed |= judged.unclaimed
        self.digests[case.digest] = case
        self.counts[f"p={case.num_ranks},v={case.stages_per_rank}"] += 1
        self.microbatches.update(set(self.subject.batch_classes(case)))
        for key, outcome in {self._key(case, o): o for o in reversed(judged.outcomes)}.items():
            self.occurrences[key] += 1
            self.first.setdefault(key, _First(corpus, purpose, case, outcome))
        if judged.worst_ratio is not None:
            self.worst_ratio = max(judged.worst_ratio, self.worst_ratio or 0.0)
        self._tell("judging")
        return judged

    def _judged(self, case: CaseT, execution: ExecutionT, *, anew: bool) -> Judged:
        """What is wrong with an execution; in haste only where all of it was seen and judged with bounds before."""
        if self.first and not self.subject.repeats:
            judged = self.subject.judged(case, execution, thorough=False, anew=True)
            if {self._key(case, o) for o in judged.outcomes} <= self.first.keys():
                return judged
        return self.subject.judged(case, execution, thorough=True, anew=anew)

    def _violations(self) -> Iterator[Violation]:
        profile = self.run.profile
        deadline = time.monotonic() + (
            profile.later_seconds if self.subject.is_later else profile.cell_seconds
        )
        for key, first in self.first.items():
            small = key.expected or first.corpus is None
            smallest = self._as_found(key, first) if small else self._smallest(key, first, deadline)
            yield self._violation(key, smallest)

    def _as_found(self, key: Key, first: _First[CaseT]) -> Smallest[CaseT]:
        """An expected violation, or one of the run before: known well enough to spend nothing on making it small."""
        stored = first.purpose == "stored"  # it was seen in an earlier run, and again in this one
        again = None if stored else self._check(key, first.case, thorough=True)
        return Smallest(
            case=first.case,
            outcome=first.outcome,
            minimal=first.minimal,
            confirmed=stored or again is not None,
            executions=0,
            reruns=0 if stored else 1,
            shown_again=int(again is not None),
        )

    def _check(self, key: Key, candidate: CaseT, *, thorough: bool = False) -> Outcome | None:
        """Execute a candidate; its outcome of the same kind, if there is one."""
        if not self.subject.applies(candidate):
            return None
        return self._shown(key, candidate, thorough=thorough).get(key)

    def _shown(self, key: Key, case: CaseT, *, thorough: bool) -> dict[Key, Outcome]:
        """Execute a case that is to show `key`: all that it shows, of each kind the first."""
        self._tell("shrinking")
        # what hung once is watched: its communication tells who waits for whom, and proves the next hang sooner
        execution = self._execute(case, hung=key.status is Status.HUNG)
        judged = self.subject.judged(case, execution, thorough=thorough, anew=True)
        return {self._key(case, o): o for o in reversed(judged.outcomes)}

    def _smallest(self, key: Key, first: _First[CaseT], deadline: float) -> Smallest[CaseT]:
        profile, case, outcome = self.run.profile, first.case, first.outcome
        assert first.corpus is not None, "only expected violations come from stored cases"

        seen: list[dict[Key, Outcome]] = []

        def check(candidate: CaseT, *, thorough: bool = False) -> Outcome | None:
            if candidate != case:
                return self._check(key, candidate, thorough=thorough)
            seen.append(self._shown(key, case, thorough=thorough))
            return seen[-1].get(key)

        hangs = outcome.status is Status.HUNG
        budget = Budget(
            seconds=max(0.0, min(profile.shrink_seconds, deadline - time.monotonic())),
            executions=min(self.hangs_left, profile.shrink_executions)
            if hangs
            else profile.shrink_executions,
        )
        smallest = self.subject.smallest(first.corpus, case, outcome, check, budget=budget)
        self.hangs_left -= smallest.executions if hangs else 0
        # candidates were judged in haste; what is reported is judged with its bounds
        sure = check(smallest.case, thorough=True) if smallest.confirmed else None
        if sure is not None:
            return dataclasses.replace(smallest, outcome=sure)
        # the same case, the same seed, another verdict: flaky, unless it is wrong each time in one way or another
        seen += [self._shown(key, case, thorough=True) for _ in range(_RERUNS)]
        again, otherwise = sum(key in shown for shown in seen), sum(_instead(key, shown) for shown in seen)
        return Smallest(
            case=case,
            outcome=outcome,
            minimal=False,
            confirmed=again + otherwise == len(seen),
            executions=smallest.executions,
            reruns=len(seen),
            shown_again=again,
            shown_otherwise=otherwise,
        )

    def _violation(self, key: Key, smallest: Smallest[CaseT]) -> Violation:
        status, signature = key.status, key.signature
        finding, case, subject = smallest.outcome.finding, smallest.case, self.subject
        # the same defect may be expected at some sizes and not at others
        apart = "" if not key.expected else "/expected"
        short = hashlib.sha256(f"{status}/{signature}{apart}".encode()).hexdigest()[:4]
        identifier = f"{subject.requirement}:{subject.schedule}:{subject.variant}:{short}"
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
            replay=f"pipeconform replay {identifier} --impl {self.run.implementation}",
            timeline=smallest.outcome.timeline,
            first_wrong=smallest.outcome.first_wrong,
            places=smallest.outcome.places,
            localisation=None if key.expected else self._localised(smallest),
        )

    def _localised(self, smallest: Smallest[CaseT]) -> Localisation | None:
        found, executions = self.subject.localised(smallest.case, smallest.outcome)
        self.executions += executions
        return found

    def _tell(self, doing: str) -> None:
        if self.run.listener is not None:
            self.run.listener(
                Progress(
                    requirement=self.subject.requirement,
                    schedule=self.subject.schedule,
                    doing=doing,
                    judged=self.judgements,
                    violations=len(self.first),
                )
            )


def _instead(key: Key, shown: Mapping[Key, Outcome]) -> bool:
    """Whether an execution went wrong in another way, which hides `key` or takes its place.

    Wrong values show side by side: one that is not there is right this time, whatever else is wrong.
    """
    return key not in shown and any({key.status, other.status} != {Status.FAILED} for other in shown)


def _status(violations: tuple[Violation, ...]) -> ResultStatus:
    confirmed = [violation.status for violation in violations if violation.confirmed]
    if violations and not confirmed:
        return "flaky"
    return min(confirmed, key=SEVERITY.index, default="passed")
