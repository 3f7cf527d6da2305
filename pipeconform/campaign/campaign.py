"""One run: cells judged one after another, over shared corpora and warm processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pipeconform.adapter import ScheduleClaim
from pipeconform.campaign.cell import CellRun
from pipeconform.campaign.corpus import Corpus
from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.pairs import Point, points_of
from pipeconform.campaign.pipeline_cell import PipelineCell
from pipeconform.campaign.store import Store
from pipeconform.case.case import Case
from pipeconform.case.strategies import Focus, Limits, reachable
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.localisation import Localisation
from pipeconform.observe.observation import Watched
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell, Status
from pipeconform.run.source import Source
from pipeconform.spec import Profile, Requirement

__all__ = ["Campaign"]


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
        reason = self._not_asked(requirement, claim, variant=variant)
        if reason is not None:
            status, why = reason
            return Cell(
                requirement=requirement.id, schedule=schedule, variant=variant, status=status, reason=why
            )
        foci = JUDGEMENTS[requirement.id].foci(claim, self.limits.capabilities)
        subject = PipelineCell(
            campaign=self,
            row=requirement,
            claim=claim,
            variant=variant,
            foci=tuple(focus for focus in foci if reachable(self.limits, claim, focus)),
            is_later=schedule != self._enough(requirement)[0],
        )
        return CellRun(self, subject).judge()

    def num_asked(self, schedule: str, *, of: Iterable[Requirement]) -> int:
        """How many of these requirements a schedule is judged by, as far as that can be told from the claims."""
        claim = self.limits.capabilities.schedule(schedule)
        return 0 if claim is None else sum(self._not_asked(row, claim, variant=None) is None for row in of)

    def _not_asked(
        self, requirement: Requirement, claim: ScheduleClaim, *, variant: str | None
    ) -> tuple[Status, str] | None:
        """Why a schedule is not judged by a requirement, if it is not.

        What is promised may depend on the variant, whose processes this starts; None leaves that open.
        """
        if not reachable(self.limits, claim):
            least, most = self.limits.min_ranks, self.limits.max_ranks
            return "skipped", f"{claim.name} claims no pipeline of {least} to {most} ranks"
        judgement, name = JUDGEMENTS[requirement.id], self.executors["default"].description.name
        foci = judgement.foci(claim, self.limits.capabilities)
        if not foci:
            return "not_claimed", f"{name} does not claim what {requirement.id} needs under {claim.name}"
        if judgement.promised and variant and not self.executors[variant].description.errors.promises:
            return "not_claimed", f"{name} promises no errors, which {requirement.id} is about"
        if not any(reachable(self.limits, claim, focus) for focus in foci):
            most = self.limits.max_ranks
            return "skipped", f"{requirement.id} needs more stages than {most} ranks have under {claim.name}"
        enough = self._enough(requirement)
        if claim.name not in enough:
            independent = judgement.any_schedule
            why = "has nothing to do with the schedule" if independent else "costs much in a small run"
            return "skipped", f"{requirement.id} {why}: judged under {' and '.join(enough)}"
        return None

    def _enough(self, requirement: Requirement) -> tuple[str, ...]:
        """The schedules under which a requirement is judged: the first, or it and the last, where any would do.

        So it is where a case costs much; if it is about what the schedule does, the smallest profile alone does so.
        """
        judgement, claims = JUDGEMENTS[requirement.id], self.limits.capabilities.schedules
        names = tuple(
            claim.name
            for claim in claims
            if (not self.schedules or claim.name in self.schedules)
            and reachable(self.limits, claim)
            and judgement.foci(claim, self.limits.capabilities)
        )
        most = self.profile.schedules
        few = judgement.any_schedule or (judgement.costly and not (judgement.by_schedule and most != 1))
        if most is None or not few:
            return names
        trained = tuple(name for name in names if any(c.name == name and c.trains for c in claims)) or names
        return tuple(dict.fromkeys((*trained[:1], *trained[-1:])))[:most]

    def corpora(self, claim: ScheduleClaim, foci: tuple[Focus, ...], *, costly: bool) -> Iterator[Corpus]:
        """The corpora of these foci under one schedule; smaller ones where cases cost much."""
        size = self.profile.costly if costly else self.profile.corpus
        for focus in foci:
            yield Corpus(limits=self.limits, schedule=claim, focus=focus, seed=self.seed, size=size)

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
