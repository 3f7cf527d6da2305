"""What a cell is about: a requirement asked of a pipeline under one schedule, or of a module wrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from pipeconform.campaign.corpus import CaseT, Drawable
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.case.any_case import AnyCase
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.outcome import Outcome
from pipeconform.observe.localisation import Localisation
from pipeconform.report.progress import Progress
from pipeconform.report.result import Violation
from pipeconform.spec import Profile

__all__ = ["ExecutionT", "Judged", "Run", "Subject"]

ExecutionT = TypeVar("ExecutionT")


class Judged(NamedTuple):
    """What a judgement came to."""

    outcomes: tuple[Outcome, ...]
    """What is wrong."""
    worst_ratio: float | None = None
    """The largest ratio of a difference to its bound among values that were accepted; None: no bound was asked."""
    compared: int = 0
    """How much was held against what is right; 0 where the case lacks what the requirement is about."""
    unclaimed: frozenset[str] = frozenset()
    """What the implementation returned although it does not claim to: names of features."""


class Run(Protocol):
    """What all cells of a run share, whatever is judged."""

    @property
    def implementation(self) -> str:
        """What the user wrote."""

    @property
    def profile(self) -> Profile:
        """How much to do."""

    @property
    def expectations(self) -> tuple[Expectation, ...]:
        """Failures that are known."""

    @property
    def device(self) -> str:
        """A torch device type."""

    @property
    def kept(self) -> KeptCases | None:
        """A folder for every case that is judged."""

    @property
    def listener(self) -> Callable[[Progress], None] | None:
        """Is told what is being done."""


class Subject(Protocol[CaseT, ExecutionT]):
    """One requirement, asked of one implementation under one schedule with one set of settings."""

    @property
    def requirement(self) -> str:
        """Its id."""

    @property
    def schedule(self) -> str:
        """The column of the cell."""

    @property
    def variant(self) -> str:
        """The environment variant."""

    @property
    def is_later(self) -> bool:
        """Whether the requirement is asked under another schedule, too, which is the first."""

    @property
    def repeats(self) -> bool:
        """Whether judging executes a case again, so that a verdict in haste is none."""

    @property
    def without(self) -> Sequence[str]:
        """Subjects of the requirement that the implementation does not claim, so that no case is about them."""

    def corpora(self) -> Sequence[Drawable[CaseT]]:
        """What cases are drawn from."""

    def drawn(self, corpus: Drawable[CaseT]) -> Iterable[CaseT]:
        """The cases of a corpus, the same in every run of its seed."""

    def smallest(
        self,
        corpus: Drawable[CaseT],
        case: CaseT,
        outcome: Outcome,
        check: Callable[[CaseT], Outcome | None],
        *,
        budget: Budget,
    ) -> Smallest[CaseT]:
        """Make `case` small, which showed `outcome` and is of `corpus` or of the search beyond it.

        `check` executes a case and returns its outcome of the same kind, or None.
        """

    def own(self, case: AnyCase) -> CaseT | None:
        """The case, if this cell is about such cases."""

    def earlier(self) -> Iterable[tuple[Violation, CaseT]]:
        """What the run before found in this cell, of what this run may execute."""

    def applies(self, case: CaseT) -> bool:
        """Whether the requirement says anything about it."""

    def known(self, case: CaseT) -> ExecutionT | None:
        """An execution of a drawn case for another requirement."""

    def keep(self, case: CaseT, execution: ExecutionT) -> None:
        """Keep it for other requirements."""

    def execute(self, case: CaseT, *, hung: bool = False) -> ExecutionT:
        """Execute it on real processes, and count; what `hung` before is watched."""

    def judged(self, case: CaseT, execution: ExecutionT, *, thorough: bool, anew: bool) -> Judged:
        """Judge an execution; without `thorough`, an enormous difference counts without its bound."""

    def num_processes(self, case: CaseT) -> int:
        """How many it runs on."""

    def repetitions(self, case: CaseT, execution: ExecutionT, *, anew: bool) -> int:
        """How often judging executed it again; counted for the run."""

    def batch_classes(self, case: CaseT) -> Iterable[str]:
        """How its numbers of microbatches stand to its number of ranks; empty where there are none."""

    def heights(self, case: CaseT, judged: Judged) -> Mapping[str, float]:
        """What the search goes after, by name: cases with more of it are varied further."""

    def why_nothing_was_compared(self, cases: Iterable[CaseT]) -> str:
        """What all of these cases lacked, so that judging them compared nothing, and what would help."""

    def localised(self, case: CaseT, outcome: Outcome) -> tuple[Localisation | None, int]:
        """Where its values begin to be wrong, and how many executions it took to say so."""
