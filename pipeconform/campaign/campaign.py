"""One run: cells judged one after another, over shared corpora and warm processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pipeconform.adapter import ScheduleClaim
from pipeconform.campaign.asked import Asked
from pipeconform.campaign.cell import CellRun
from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.pairs import Point, points_of
from pipeconform.campaign.pipeline_cell import PipelineCell
from pipeconform.campaign.store import Store
from pipeconform.case.case import Case
from pipeconform.case.strategies import Limits
from pipeconform.execute.source import Source
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.localisation import Localisation
from pipeconform.observe.observation import Watched
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell, Status
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
        subject = PipelineCell(
            campaign=self,
            row=requirement,
            claim=claim,
            variant=variant,
            is_later=schedule != self._enough(requirement)[0],
        )
        return CellRun(self, subject).judge()

    @property
    def asked(self) -> Asked:
        """Which requirements are judged under which schedules."""
        return Asked(
            name=self.executors["default"].description.name,
            limits=self.limits,
            profile=self.profile,
            schedules=self.schedules,
        )

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
        open_ = variant is None or not JUDGEMENTS[requirement.id].promised
        promises = open_ or bool(self.executors[str(variant)].description.errors.promises)
        return self.asked.why_not(requirement, claim, promises=promises)

    def _enough(self, requirement: Requirement) -> tuple[str, ...]:
        return self.asked.enough(requirement)

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
