"""One run: cells judged one after another, over shared corpora and warm processes."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeconform.adapter import ScheduleClaim
from pipeconform.campaign.corpus import Corpus, drawn, run_strategy
from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge, num_repetitions
from pipeconform.campaign.kept import JudgedCases, KeptCases
from pipeconform.campaign.localising import is_numeric, localise
from pipeconform.campaign.minimise import Budget, Smallest, minimise
from pipeconform.campaign.pairs import Point, points_of
from pipeconform.campaign.store import Store
from pipeconform.case.case import Case
from pipeconform.case.strategies import Focus, Limits, reachable
from pipeconform.errors import NothingJudgedError
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.localisation import Localisation
from pipeconform.observe.observation import Watched
from pipeconform.report.progress import Progress
from pipeconform.report.result import SEVERITY, Cell, Violation
from pipeconform.report.result import Status as ResultStatus
from pipeconform.run.source import Source
from pipeconform.spec import Profile, Requirement
from pipeconform.spec.levels import batch_class

__all__ = ["Campaign"]

_RERUNS = 4
"""Executions of a case that did not show its violation every time."""


class Key(NamedTuple):
    """What tells two violations of a cell apart; `expected` is the label of the entry that covers it."""

    status: Status
    signature: str
    expected: str = ""


class _First(NamedTuple):
    """Where a violation was met first; no corpus: in a stored case."""

    corpus: Corpus | None
    purpose: str
    case: Case
    outcome: Outcome
    minimal: bool = False


@dataclass
class Campaign:
    """The state of one run in one process: executors by variant, the store, what has been counted."""

    executors: Mapping[str, Executor]
    profile: Profile
    seed: int
    limits: Limits
    store: Store = field(default_factory=Store)
    implementation: str = "torch"
    schedules: tuple[str, ...] = ()
    """The schedules that the run is about; empty for all that are claimed."""
    listener: Callable[[Progress], None] | None = None
    executed: dict[str, int] = field(default_factory=dict)
    """Executions by case digest, over the whole run."""
    num_ranks: dict[str, int] = field(default_factory=dict)
    """p by case digest."""
    points: set[Point] = field(default_factory=set)
    """The combinations of properties that the executed cases had."""
    expectations: tuple[Expectation, ...] = ()
    device: str = "cpu"
    kept: KeptCases | None = None
    earlier: Earlier = field(default_factory=Earlier)
    """What the run before found."""
    localised: dict[tuple[str, str], Localisation | None] = field(default_factory=dict)
    """By variant and case digest where values begin to be wrong: several requirements end in the same case."""
    source: Source = field(default_factory=Source)
    """The adapter's source file."""

    def judge_cell(self, requirement: Requirement, schedule: str, variant: str = "default") -> Cell:
        """Judge one requirement under one schedule.

        Raises:
            UsageError: the schedule is not claimed.
            HarnessError: the harness failed; no verdict can be drawn.
            NothingJudgedError: it is claimed, but no case of the corpus applies.
        """
        claim = self.limits.capabilities.schedule(schedule)
        assert claim is not None
        foci = JUDGEMENTS[requirement.id].foci(claim, self.limits.capabilities)
        if not foci:
            return Cell(
                requirement=requirement.id,
                schedule=schedule,
                variant=variant,
                status="not_claimed",
                reason=f"{self.executors[variant].description.name} does not claim what {requirement.id} needs "
                f"under {schedule}",
            )
        foci = tuple(focus for focus in foci if reachable(self.limits, claim, focus))
        if not foci:
            return Cell(
                requirement=requirement.id,
                schedule=schedule,
                variant=variant,
                status="skipped",
                reason=f"{requirement.id} needs more stages than {self.limits.max_ranks} ranks have under {schedule}",
            )
        enough = self._enough(requirement)
        if schedule not in enough:
            costly = JUDGEMENTS[requirement.id].costly
            why = "costs much in a small run" if costly else "has nothing to do with the schedule"
            reason = f"{requirement.id} {why}: judged under {' and '.join(enough)}"
            return Cell(
                requirement=requirement.id,
                schedule=schedule,
                variant=variant,
                status="skipped",
                reason=reason,
            )
        return _CellRun(self, requirement, claim, variant, foci).judge()

    def _enough(self, requirement: Requirement) -> tuple[str, ...]:
        """The schedules under which a requirement is judged: the first, or it and the last, where any would do.

        The smallest profile takes the first also where every schedule matters, but a case costs much.
        """
        judgement, claims = JUDGEMENTS[requirement.id], self.limits.capabilities.schedules
        names = tuple(
            claim.name
            for claim in claims
            if (not self.schedules or claim.name in self.schedules)
            and reachable(self.limits, claim)
            and judgement.foci(claim, self.limits.capabilities)
        )
        few = judgement.any_schedule or (judgement.costly and self.profile.schedules == 1)
        if self.profile.schedules is None or not few:
            return names
        trained = tuple(name for name in names if any(c.name == name and c.trains for c in claims)) or names
        return tuple(dict.fromkeys((*trained[:1], *trained[-1:])))[: self.profile.schedules]

    def corpora(self, claim: ScheduleClaim, foci: tuple[Focus, ...]) -> Iterator[Corpus]:
        """The corpora of these foci under one schedule."""
        for focus in foci:
            yield Corpus(
                limits=self.limits, schedule=claim, focus=focus, seed=self.seed, size=self.profile.corpus
            )

    def execute(self, case: Case, variant: str, *, observe: Iterable[Watched] = ()) -> Execution:
        """Execute, and count."""
        execution = self.executors[variant].execute(case, observe=observe)
        self.count(case, times=1)
        return execution

    def count(self, case: Case, *, times: int) -> None:
        """Note that a case was executed; what another worker executed first may be repeated here."""
        digest = case.digest
        self.executed[digest] = self.executed.get(digest, 0) + times
        self.num_ranks[digest] = case.num_ranks
        self.points |= points_of(case)


class _CellRun:
    """Judging one cell: the corpus first, then a search beyond it, then every violation made small."""

    def __init__(
        self,
        campaign: Campaign,
        requirement: Requirement,
        claim: ScheduleClaim,
        variant: str,
        foci: tuple[Focus, ...],
    ) -> None:
        self.campaign, self.requirement, self.claim = campaign, requirement, claim
        self.variant, self.foci = variant, foci
        self.observe = JUDGEMENTS[requirement.id].observe
        self.judgements = self.executions = 0
        self.digests: dict[str, Case] = {}
        self.renewed: set[int] = set()
        """Sizes of worlds whose processes were replaced to compare old and new ones."""
        self.counts: Counter[str] = Counter()
        self.microbatches: Counter[str] = Counter()
        self.expected = tuple(
            entry
            for entry in campaign.expectations
            if entry.is_about(requirement=requirement.id, schedule=claim.name, device=campaign.device)
        )
        self.first: dict[Key, _First] = {}
        self.occurrences: Counter[Key] = Counter()
        self.stale: list[str] = []

    def judge(self) -> Cell:
        begun = time.monotonic()
        applies = JUDGEMENTS[self.requirement.id].applies
        self._replay_expected()
        self._replay_earlier(applies)
        for corpus in self.campaign.corpora(self.claim, self.foci):
            for case in drawn(corpus):
                if applies(case):
                    self._judge_stored(corpus, case)
        if self.campaign.profile.search:
            self._search(applies)
        if not self.judgements:
            raise NothingJudgedError(
                f"{self.requirement.id} under {self.claim.name} is claimed, but none of the drawn cases applies: "
                f"raise --examples or widen --ranks"
            )
        self._keep()
        violations = tuple(self._violations())
        return Cell(
            requirement=self.requirement.id,
            schedule=self.claim.name,
            variant=self.variant,
            status=_status(violations),
            judgements=self.judgements,
            executions=self.executions,
            distinct_cases=len(self.digests),
            counts=dict(sorted(self.counts.items())),
            microbatches=dict(sorted(self.microbatches.items())),
            seconds=round(time.monotonic() - begun, 3),
            violations=violations,
            stale=tuple(self.stale),
        )

    def _keep(self) -> None:
        if self.campaign.kept is not None:
            judged = JudgedCases(
                requirement=self.requirement.id,
                schedule=self.claim.name,
                variant=self.variant,
                digests=tuple(self.digests),
            )
            self.campaign.kept.keep(judged, self.digests.values())

    def _replay_expected(self) -> None:
        """Execute the stored cases of expected failures: they need no search and no shrinking."""
        for entry in self.expected:
            for stored in entry.stored:
                if stored.case.schedule != self.claim.name:
                    continue
                execution = self._execute(stored.case)
                found = judge(self.requirement, execution, self.campaign.executors[self.variant])
                shown = {self._key(stored.case, o): o for o in reversed(found)}
                key = next((key for key in shown if key.expected == entry.label), None)
                if key is None:
                    self.stale.append(stored.path)
                else:
                    self.first.setdefault(key, _First(None, "stored", stored.case, shown[key]))

    def _replay_earlier(self, applies: Callable[[Case], bool]) -> None:
        """Execute what the run before found; it is small already, and is reported as it is if it shows the same."""
        where = (self.requirement.id, self.claim.name, self.variant)
        for known in self.campaign.earlier.of(where, self.campaign.limits):
            if not applies(known.case):
                continue
            self._note(None, "earlier", self._execute(known.case))
            key = Key(Status(known.status), known.signature)
            first = self.first.get(key)
            if known.confirmed and first is not None and first.case == known.case:
                self.first[key] = first._replace(purpose="stored", minimal=known.minimal)

    def _key(self, case: Case, outcome: Outcome) -> Key:
        """What an outcome is counted as; another defect inside an expected one has a key of its own."""
        status, signature = outcome.status, outcome.finding.kind
        p, v = case.num_ranks, case.stages_per_rank
        for entry in self.expected:
            if (entry.status, entry.signature) == (status.value, signature) and entry.covers_size(
                num_ranks=p, stages_per_rank=v
            ):
                return Key(status, signature, entry.label)
        return Key(status, signature)

    def _judge_stored(self, corpus: Corpus, case: Case) -> None:
        """Judge a case of the corpus, executed by whichever requirement came first."""
        key = "-".join((self.variant, *sorted(self.observe), case.digest))
        execution = self.campaign.store.get(key)
        if execution is None:
            execution = self._execute(case)
            self.campaign.store.put(key, execution)
        self._note(corpus, "corpus", execution)

    def _search(self, applies: Callable[[Case], bool]) -> None:
        for corpus in self.campaign.corpora(self.claim, self.foci):

            def body(case: Case, corpus: Corpus = corpus) -> None:
                if applies(case) and case.digest not in self.digests:
                    self._note(corpus, "search", self._execute(case))

            each = -(-self.campaign.profile.search // len(self.foci))
            run_strategy(corpus, body, max_examples=each, purpose=f"search {self.requirement.id}")

    def _execute(self, case: Case, *, also: Iterable[Watched] = ()) -> Execution:
        self.executions += 1
        execution = self.campaign.execute(case, self.variant, observe={*self.observe, *also})
        self._tell("judging")
        return execution

    def _note(self, corpus: Corpus | None, purpose: str, execution: Execution) -> None:
        case = execution.case
        # new processes cost more than everything else: once per cell and size of the world, unless shrinking
        anew = case.world.size not in self.renewed
        outcomes = self._outcomes(execution, anew=anew)
        if JUDGEMENTS[self.requirement.id].repeats and execution.outcome() is None:
            self.renewed.add(case.world.size)
            repetitions = num_repetitions(anew=anew)
            self.executions += repetitions
            self.campaign.count(case, times=repetitions)
        self.judgements += 1
        self.digests[case.digest] = case
        self.counts[f"p={case.num_ranks},v={case.stages_per_rank}"] += 1
        p = case.num_ranks
        self.microbatches.update(
            {batch_class(num_ranks=p, num_microbatches=run.num_microbatches) for run in case.runs}
        )
        for key, outcome in {self._key(case, o): o for o in reversed(outcomes)}.items():
            self.occurrences[key] += 1
            self.first.setdefault(key, _First(corpus, purpose, case, outcome))
        self._tell("judging")

    def _outcomes(self, execution: Execution, *, anew: bool) -> tuple[Outcome, ...]:
        """What is wrong with an execution; in haste only where all of it was seen and judged with bounds before."""
        executor = self.campaign.executors[self.variant]
        if self.first and not JUDGEMENTS[self.requirement.id].repeats:
            outcomes = judge(self.requirement, execution, executor, thorough=False)
            if {self._key(execution.case, o) for o in outcomes} <= self.first.keys():
                return outcomes
        return judge(self.requirement, execution, executor, anew=anew)

    def _violations(self) -> Iterator[Violation]:
        deadline = time.monotonic() + self.campaign.profile.cell_seconds
        for key, first in self.first.items():
            small = key.expected or first.corpus is None
            smallest = self._as_found(key, first) if small else self._smallest(key, first, deadline)
            yield self._violation(key, smallest)

    def _as_found(self, key: Key, first: _First) -> Smallest:
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

    def _check(self, key: Key, candidate: Case, *, thorough: bool = False) -> Outcome | None:
        """Execute a candidate; its outcome of the same kind, if there is one."""
        if not JUDGEMENTS[self.requirement.id].applies(candidate):
            return None
        self._tell("shrinking")
        # what hung once is watched: its communication tells who waits for whom, and proves the next hang sooner
        execution = self._execute(candidate, also=("waits",) if key.status is Status.HUNG else ())
        executor = self.campaign.executors[self.variant]
        outcomes = judge(self.requirement, execution, executor, thorough=thorough)
        return next((o for o in outcomes if self._key(candidate, o) == key), None)

    def _smallest(self, key: Key, first: _First, deadline: float) -> Smallest:
        profile, case, outcome = self.campaign.profile, first.case, first.outcome
        assert first.corpus is not None, "only expected violations come from stored cases"

        def check(candidate: Case, *, thorough: bool = False) -> Outcome | None:
            return self._check(key, candidate, thorough=thorough)

        hangs = outcome.status is Status.HUNG
        budget = Budget(
            seconds=max(0.0, min(profile.shrink_seconds, deadline - time.monotonic())),
            executions=min(20, profile.shrink_executions) if hangs else profile.shrink_executions,
        )
        searched = first.purpose != "corpus"
        smallest = minimise(
            first.corpus,
            case,
            outcome,
            check,
            budget=budget,
            purpose=f"search {self.requirement.id}" if searched else "corpus",
            max_examples=-(-profile.search // len(self.foci)) if searched else None,
        )
        # candidates were judged in haste; what is reported is judged with its bounds
        sure = check(smallest.case, thorough=True) if smallest.confirmed else None
        if sure is not None:
            return dataclasses.replace(smallest, outcome=sure)
        # the same case, the same seed, another verdict: how often decides whether to call it flaky
        again = [check(case, thorough=True) is not None for _ in range(_RERUNS)]
        gone = not smallest.confirmed and smallest.executions > 0
        return Smallest(
            case=case,
            outcome=outcome,
            minimal=False,
            confirmed=all(again) and not gone,
            executions=smallest.executions,
            reruns=len(again) + gone,
            shown_again=sum(again),
        )

    def _violation(self, key: Key, smallest: Smallest) -> Violation:
        status, signature = key.status, key.signature
        finding, case = smallest.outcome.finding, smallest.case
        # the same defect may be expected at some sizes and not at others
        apart = "" if not key.expected else "/expected"
        short = hashlib.sha256(f"{status}/{signature}{apart}".encode()).hexdigest()[:4]
        identifier = f"{self.requirement.id}:{self.claim.name}:{self.variant}:{short}"
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
            expected=key.expected,
            occurrences=self.occurrences[key],
            verdicts=smallest.outcome.verdicts,
            replay=f"pipeconform replay {identifier} --impl {self.campaign.implementation}",
            timeline=smallest.outcome.timeline,
            first_wrong=smallest.outcome.first_wrong,
            places=smallest.outcome.places,
            localisation=None if key.expected else self._localised(smallest),
        )

    def _localised(self, smallest: Smallest) -> Localisation | None:
        """Where the values of a case begin to be wrong, by one more execution of it."""
        if not is_numeric(smallest.outcome):
            return None
        known, key = self.campaign.localised, (self.variant, smallest.case.digest)
        if key not in known:
            self.executions += 1
            self.campaign.count(smallest.case, times=1)
            executor = self.campaign.executors[self.variant]
            known[key] = localise(smallest.case, (smallest.outcome,), executor)
        return known[key]

    def _tell(self, doing: str) -> None:
        if self.campaign.listener is not None:
            self.campaign.listener(
                Progress(
                    requirement=self.requirement.id,
                    schedule=self.claim.name,
                    doing=doing,
                    judged=self.judgements,
                    violations=len(self.first),
                )
            )


def _status(violations: tuple[Violation, ...]) -> ResultStatus:
    confirmed = [violation.status for violation in violations if violation.confirmed]
    if violations and not confirmed:
        return "flaky"
    return min(confirmed, key=SEVERITY.index, default="passed")
