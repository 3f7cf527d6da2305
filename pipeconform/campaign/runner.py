"""The contract of what executes and judges cases: one implementation under one environment variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from pipeconform.case.any_case import AnyCase
from pipeconform.judge.outcome import Outcome
from pipeconform.observe.localisation import Localisation
from pipeconform.ranks.protocols import RankPools
from pipeconform.spec import Requirement
from pipeconform.spec.wrappers import Kind

__all__ = ["CaseT", "ExecutionT", "Judged", "Runner"]

CaseT = TypeVar("CaseT", bound=AnyCase)
ExecutionT = TypeVar("ExecutionT")


class Judged(NamedTuple):
    """The result of judging one execution."""

    outcomes: tuple[Outcome, ...]
    """The violations found."""
    worst_ratio: float | None = None
    """The largest ratio of a difference to its bound among accepted values; None if no bound was computed."""
    compared: int = 0
    """How many values were compared; 0 if the case lacks what the requirement is about."""
    unclaimed: frozenset[str] = frozenset()
    """Names of features that the implementation showed without claiming them."""


class Runner(Protocol[CaseT, ExecutionT]):
    """Executes cases of one implementation and judges them."""

    @property
    def implementation(self) -> str:
        """The implementation's full reference, as `pipeconform.execute.implementation.resolve` returns it."""

    @property
    def title(self) -> str:
        """The implementation's name and version."""

    @property
    def kind(self) -> Kind:
        """The kind of implementation."""

    @property
    def pools(self) -> RankPools:
        """The processes that execute cases."""

    @property
    def promises(self) -> bool:
        """Whether the implementation promises any errors under this variant."""

    @property
    def executions(self) -> type[ExecutionT]:
        """The type of an execution."""

    def own(self, case: AnyCase) -> CaseT | None:
        """The case if it is of the kind that this implementation executes, else None."""

    def apart(self, rows: Iterable[Requirement]) -> tuple[tuple[Requirement, ...], ...]:
        """The requirements in groups; those of one group can judge the same execution."""

    def execute(self, case: CaseT, rows: Iterable[Requirement], *, hung: bool = False) -> ExecutionT:
        """Execute a case, recording everything that these requirements observe.

        If the case `hung` before, the ranks also record which rank waits for which: that proves a hang sooner.

        Raises:
            HarnessError: the harness failed.
        """

    def stored_as(self, case: CaseT, rows: Iterable[Requirement]) -> str | None:
        """The key of an execution that these requirements can judge, to keep it under; None if it is not kept."""

    def judged(
        self,
        row: Requirement,
        case: CaseT,
        execution: ExecutionT,
        *,
        thorough: bool = True,
        anew: bool = True,
    ) -> Judged:
        """Judge an execution; unless `thorough`, an enormous difference counts without computing its bound.

        With `anew`, a requirement about determinism also compares old processes with new ones.

        Raises:
            ContractError: the adapter broke its contract.
            HarnessError: the harness failed.
        """

    def repetitions(self, row: Requirement, execution: ExecutionT, *, anew: bool) -> int:
        """How many times judging executed the case again."""

    def localised(self, case: CaseT, outcomes: Sequence[Outcome]) -> Localisation | None:
        """Where values begin to be wrong, from one more execution; None if that is not known.

        Raises:
            HarnessError: the harness failed.
        """

    def can_localise(self, outcome: Outcome) -> bool:
        """Whether another execution could find where values begin to be wrong."""
