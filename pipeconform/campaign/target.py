"""What a campaign judges: a pipeline implementation under its schedules, or a data-parallel wrapper.

A `Target` is made of what an implementation says of itself, and executes nothing: which requirements it is asked, on
which cases, and why the others are not asked. Whoever reads a result can therefore say which cells and cases it must
have. Cases are executed by a `pipeconform.campaign.runner.Runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeconform.campaign.corpus import Drawable
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.campaign.pairs import Point
from pipeconform.campaign.runner import CaseT
from pipeconform.case.any_case import AnyCase
from pipeconform.errors import NothingJudgedError, UsageError
from pipeconform.judge.outcome import Outcome
from pipeconform.report.result import Status
from pipeconform.spec import Profile, Requirement
from pipeconform.spec.wrappers import Kind

__all__ = ["Asked", "NotAsked", "Target", "some_of"]


@dataclass(frozen=True)
class NotAsked:
    """Why a requirement is not judged."""

    status: Status
    """``skipped`` or ``not_claimed``."""
    reason: str


class Asked(Protocol[CaseT]):
    """One requirement, asked of one implementation in one column of the table."""

    @property
    def row(self) -> Requirement:
        """The requirement."""

    @property
    def column(self) -> str:
        """The schedule, or what stands for it."""

    @property
    def is_later(self) -> bool:
        """Whether the requirement is asked in another column too, which comes first."""

    @property
    def repeats(self) -> bool:
        """Whether judging executes a case again, so that each judgement is made in full."""

    @property
    def without(self) -> Sequence[str]:
        """Subjects of the requirement that the implementation does not claim, so that no case is about them."""

    @property
    def num_ranks(self) -> int:
        """The ranks of its largest cases."""

    @property
    def corpora(self) -> Sequence[Drawable[CaseT]]:
        """What cases are drawn from."""

    def own(self, case: AnyCase) -> CaseT | None:
        """The case, if it is one of this column."""

    def applies(self, case: CaseT) -> bool:
        """Whether the requirement is about this case."""

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

    def heights(self, case: CaseT, *, worst_ratio: float | None) -> Mapping[str, float]:
        """What the search maximises, by name: cases with more of it are varied further."""

    def why_nothing_was_compared(self, cases: Iterable[CaseT]) -> str:
        """What all of these cases lacked, so that judging them compared nothing, and what would help."""


class Target(Protocol):
    """What an implementation says of itself, and what a run asks of it."""

    @property
    def kind(self) -> Kind:
        """What it is."""

    @property
    def name(self) -> str:
        """What it calls itself."""

    @property
    def version(self) -> str:
        """Which one it is."""

    @property
    def claims(self) -> object:
        """What it claims, as data."""

    @property
    def errors(self) -> object:
        """What it promises about mistakes, as data; None where it cannot promise anything."""

    @property
    def variants(self) -> Mapping[str, Mapping[str, str]]:
        """Environment variables of each variant besides the default one."""

    @property
    def profile(self) -> Profile:
        """How much is done."""

    @property
    def max_ranks(self) -> int:
        """The most ranks that a case may have here."""

    @property
    def shares_executions(self) -> bool:
        """Whether one execution answers several requirements in a column, so that they are best judged together."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns in which it can be judged."""

    def chosen(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that were asked for, whatever the case of the letters; all for none.

        Raises:
            UsageError: one asked for is not claimed, or there are none to choose from.
        """

    def ask(self, row: Requirement, column: str, *, promises: Callable[[], bool]) -> Asked[Any] | NotAsked:
        """What a requirement is judged on in a column, or why it is not judged there.

        `promises` says whether errors are promised; it is called only where that matters.

        Raises:
            NothingJudgedError: it is claimed, but no case lies inside the claims.
        """

    def allows(self, case: AnyCase) -> bool:
        """Whether a stored case lies within the claims and the ranks of the run."""

    def judged_by(
        self, case: AnyCase, *, name: str, asked: str | None, stored: str | None
    ) -> tuple[Requirement, ...]:
        """The requirements by which a stored case is judged again.

        That is the one asked for, or else that of the stored violation, or else all that are about the case, which
        is of this kind of implementation and which messages call `name`.

        Raises:
            UnknownNameError: no requirement has that id, or the case's schedule is not claimed.
            UsageError: the case lies outside of the claims, or the requirement asked for is not about it.
            NothingJudgedError: no requirement is about it.
        """

    def against(self, requirement: str, column: str) -> Iterator[AnyCase]:
        """Cases on which an implementation that breaks the requirement in this column must be caught."""

    def points(self, case: AnyCase) -> frozenset[Point]:
        """The combinations of properties that a case has."""

    def reachable(self, columns: Iterable[str]) -> frozenset[Point]:
        """All combinations of properties that cases can have in these columns."""

    def batch_classes(self, case: AnyCase) -> frozenset[str]:
        """How its numbers of microbatches compare with its number of ranks; empty where there are none."""


def some_of(
    wanted: tuple[Requirement, ...], is_about: Callable[[Requirement], bool], *, asked: str | None
) -> tuple[Requirement, ...]:
    """Those of the `wanted` requirements that are about a case; `asked` names the only one, if it was asked for.

    Raises:
        UsageError: the one asked for is not.
        NothingJudgedError: none is.
    """
    chosen = tuple(filter(is_about, wanted))
    if chosen:
        return chosen
    if asked is not None:
        raise UsageError(
            f"{wanted[0].id} says nothing about this case, or the implementation does not claim what it needs; "
            f"leave --requirement out to judge the case by all that do"
        )
    raise NothingJudgedError("no requirement says anything about this case")
