"""What executes and judges cases: an implementation in the processes of one environment variant."""

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
    """What is wrong."""
    worst_ratio: float | None = None
    """The largest ratio of a difference to its bound among values that were accepted; None: no bound was asked."""
    compared: int = 0
    """How many values were compared; 0 where the case lacks what the requirement is about."""
    unclaimed: frozenset[str] = frozenset()
    """Names of features that the implementation does not claim, and that it showed."""


class Runner(Protocol[CaseT, ExecutionT]):
    """Runs cases of one implementation, and judges what they show."""

    @property
    def implementation(self) -> str:
        """Its full reference, as `pipeconform.execute.implementation.resolve` gives it."""

    @property
    def title(self) -> str:
        """Its own name and version."""

    @property
    def kind(self) -> Kind:
        """What it is."""

    @property
    def pools(self) -> RankPools:
        """The processes."""

    @property
    def promises(self) -> bool:
        """Whether it promises any errors, which may depend on the variant."""

    @property
    def executions(self) -> type[ExecutionT]:
        """The type of an execution."""

    def own(self, case: AnyCase) -> CaseT | None:
        """The case, if it is of the kind that this implementation executes."""

    def execute(self, case: CaseT, rows: Iterable[Requirement], *, hung: bool = False) -> ExecutionT:
        """Execute a case with everything recorded that these requirements look at.

        Where the case `hung` before, the ranks also record who waits for whom: that proves a hang, and soon.

        Raises:
            HarnessError: the harness failed.
        """

    def stored_as(self, case: CaseT, row: Requirement) -> str | None:
        """The key under which an execution can serve other requirements; None where it cannot."""

    def judged(
        self,
        row: Requirement,
        case: CaseT,
        execution: ExecutionT,
        *,
        thorough: bool = True,
        anew: bool = True,
    ) -> Judged:
        """Judge an execution; without `thorough`, an enormous difference counts without its bound.

        With `anew`, a requirement about determinism also compares old processes with new ones.

        Raises:
            ContractError: the adapter broke its contract.
            HarnessError: the harness failed.
        """

    def repetitions(self, row: Requirement, execution: ExecutionT, *, anew: bool) -> int:
        """How many times judging executed the case again."""

    def localised(self, case: CaseT, outcomes: Sequence[Outcome]) -> Localisation | None:
        """Where values begin to be wrong, by one more execution; None where that is not known.

        Raises:
            HarnessError: the harness failed.
        """

    def can_localise(self, outcome: Outcome) -> bool:
        """Whether it is worth an execution to find out where values begin to be wrong."""
