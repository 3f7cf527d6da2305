"""One run: its target, its processes and its counts, which all cells share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.pairs import Point
from pipeconform.campaign.runner import Runner
from pipeconform.campaign.store import Store
from pipeconform.campaign.target import Asked, NotAsked, Target
from pipeconform.campaign.variants import Runners
from pipeconform.case.any_case import AnyCase
from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.execute.source import Source
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.observe.localisation import Localisation
from pipeconform.report.progress import Progress
from pipeconform.spec import Profile, Requirement

__all__ = ["Campaign"]


@dataclass(kw_only=True)
class Campaign:
    """The state of one run in one process."""

    target: Target
    """The implementation's description, and what the run asks of it."""
    runners: Mapping[str, Runner[Any, Any]]
    """The runners, by environment variant."""
    implementation: str = "torch"
    """The implementation as the user named it."""
    store: Store = field(default_factory=Store)
    listener: Callable[[Progress], None] | None = None
    executed: dict[str, int] = field(default_factory=dict)
    """Executions by case digest, over the whole run."""
    num_ranks: dict[str, int] = field(default_factory=dict)
    """The number of pipeline ranks, p, by case digest."""
    points: set[Point] = field(default_factory=set)
    """The combinations of properties in the executed cases."""
    expectations: tuple[Expectation, ...] = ()
    device: str = "cpu"
    kept: KeptCases | None = None
    earlier: Earlier = field(default_factory=Earlier)
    """The violations of the previous run."""
    localised: dict[tuple[str, str], Localisation | None] = field(default_factory=dict)
    """Where values begin to be wrong, by variant and case digest: several requirements may shrink to one case."""
    smallest: dict[tuple[str, str, Status, str], Any] = field(default_factory=dict)
    """The smallest cases (`Smallest`) of violations, by requirement, column, status and signature: variants often share
    them."""
    answers: dict[tuple[str, str], dict[str, Sequence[Outcome]]] = field(default_factory=dict)
    """What controls showed, by variant, case digest and requirement: several violations may have one control."""
    source: Source = field(default_factory=Source)
    """The adapter's source file."""

    @property
    def profile(self) -> Profile:
        """The profile, which sets the extent of the run."""
        return self.target.profile

    def runner(self, variant: str) -> Runner[Any, Any]:
        """The runner for an environment variant.

        Raises:
            UnknownNameError: the implementation does not name that variant.
            HarnessError: processes cannot be started, or do not have the variant's settings.
        """
        if variant not in self.runners:
            raise UnknownNameError("environment variant", variant, self.runners)
        return self.runners[variant]

    @property
    def started(self) -> Mapping[str, Runner[Any, Any]]:
        """The runners that have been used, by environment variant."""
        return self.runners.started if isinstance(self.runners, Runners) else self.runners

    def discard_processes(self) -> None:
        """End the processes of all runners; their next tasks start others."""
        for runner in self.started.values():
            runner.pools.clear()

    def variants_of(self, requirement: str) -> tuple[str, ...]:
        """The environment variants under which a requirement is judged."""
        varied = self.profile.varied
        everywhere = varied is None or requirement.partition("-")[0] in varied
        return tuple(self.runners) if everywhere else ("default",)

    def ask(self, row: Requirement, column: str, variant: str) -> Asked[Any] | NotAsked:
        """The cases that a requirement is judged on, or why it is not judged.

        Raises:
            NothingJudgedError: the requirement is claimed, but no case lies within the claims.
        """
        return self.target.ask(row, column, promises=lambda: self.runners[variant].promises)

    def judged_by(
        self, case: AnyCase, *, name: str, asked: str | None = None, stored: str | None = None
    ) -> tuple[Requirement, ...]:
        """The requirements that judge a stored case again; see `Target.judged_by`.

        Raises:
            UsageError: the case belongs to another kind of implementation; or as `Target.judged_by`.
            NothingJudgedError: no requirement applies to it.
        """
        if self.runners["default"].own(case) is None:
            raise UsageError(
                f"{self.implementation} is a {self.target.kind}, but {name} is not a case for a {self.target.kind}"
            )
        return self.target.judged_by(case, name=name, asked=asked, stored=stored)

    def count(self, case: AnyCase, *, times: int = 1) -> None:
        """Count executions of a case; another worker may have executed it too."""
        digest = case.digest
        if digest not in self.executed:
            self.points |= self.target.points(case)
        self.executed[digest] = self.executed.get(digest, 0) + times
        self.num_ranks[digest] = case.num_ranks
