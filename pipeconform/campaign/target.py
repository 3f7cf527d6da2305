"""The contract of what a campaign judges: a pipeline implementation under its schedules, or a data-parallel wrapper.

A `Target` is built from an implementation's description. It knows which requirements are judged, on which cases, and
why the others are not, but executes nothing: a reader of a result can work out which cells and cases it must have.
A `pipeconform.campaign.runner.Runner` executes the cases.
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
        """The schedule; for a wrapper, `WRAPPER_COLUMN`."""

    @property
    def is_later(self) -> bool:
        """Whether an earlier column also asks for the requirement."""

    @property
    def repeats(self) -> bool:
        """Whether judging executes a case again; every judgement is then made in full."""

    @property
    def without(self) -> Sequence[str]:
        """Subjects of the requirement that have no cases because the implementation does not claim them."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks of its largest cases."""

    @property
    def corpora(self) -> Sequence[Drawable[CaseT]]:
        """The corpora from which cases are drawn."""

    def own(self, case: AnyCase) -> CaseT | None:
        """The case if it belongs to this column, else None."""

    def applies(self, case: CaseT) -> bool:
        """Whether the requirement is about this case."""

    def controls(self, case: CaseT) -> Sequence[tuple[str, CaseT]]:
        """The same case without each thing that the requirement adds to it, with what was changed in words.

        Empty if the requirement adds nothing, or if no such case lies within the claims.
        """

    def surroundings(self, case: CaseT) -> tuple[Requirement, str, CaseT] | None:
        """Whose business it is what a case has around its subject, and the case without that, in words and as a case.

        None if it has nothing around it.
        """

    def instead(self, row: Requirement) -> Asked[CaseT]:
        """What another requirement asks in the same column."""

    def explaining(self, control: CaseT) -> Sequence[Requirement]:
        """The other requirements that may explain what a control shows, the most basic first."""

    def earlier(self, case: CaseT, *, controlled: bool) -> Sequence[Requirement]:
        """The requirements that come before this one where both see one fact in a case, the most basic first.

        With `controlled`, a control of this one passed, and only those are meant that come first nevertheless.
        """

    def smallest(
        self,
        corpus: Drawable[CaseT],
        case: CaseT,
        outcome: Outcome,
        check: Callable[[CaseT], Outcome | None],
        *,
        budget: Budget,
    ) -> Smallest[CaseT]:
        """Shrink `case`, which showed `outcome` and was drawn from `corpus` or found by the search beyond it.

        `check` executes a case and returns its outcome of the same kind, or None.
        """

    def heights(self, case: CaseT, *, worst_ratio: float | None) -> Mapping[str, float]:
        """The quantities that the search maximises, by name: it varies cases with high values further."""

    def why_nothing_was_compared(self, cases: Iterable[CaseT]) -> str:
        """Why judging these cases compared nothing, and what would help."""


class Target(Protocol):
    """An implementation's description, and what a run asks of it."""

    @property
    def kind(self) -> Kind:
        """The kind of implementation."""

    @property
    def name(self) -> str:
        """The name in its description."""

    @property
    def version(self) -> str:
        """The version in its description."""

    @property
    def built_on(self) -> str:
        """The name of the implementation that it is built on; empty if none."""

    @property
    def claims(self) -> object:
        """Its claims, as data."""

    @property
    def errors(self) -> object:
        """Its promises about mistakes, as data; None if this kind of implementation makes none."""

    @property
    def variants(self) -> Mapping[str, Mapping[str, str]]:
        """Environment variables of each variant besides the default one."""

    @property
    def profile(self) -> Profile:
        """The profile, which sets the extent of the run."""

    @property
    def max_ranks(self) -> int:
        """The largest number of ranks that a case may have in this run."""

    @property
    def shares_executions(self) -> bool:
        """Whether one execution serves several requirements of a column, which are then best judged together."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the table in which it can be judged."""

    def chosen(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The columns named in `wanted`, in any letter case; all columns if it is empty.

        Raises:
            UsageError: one of them is not claimed, or the implementation has no schedules.
        """

    def ask(self, row: Requirement, column: str, *, promises: Callable[[], bool]) -> Asked[Any] | NotAsked:
        """The cases that a requirement is judged on in a column, or why it is not judged there.

        `promises` returns whether the implementation promises any errors; it is called only if that matters.

        Raises:
            NothingJudgedError: the requirement is claimed, but no case lies within the claims.
        """

    def allows(self, case: AnyCase) -> bool:
        """Whether a stored case lies within the claims and the ranks of the run."""

    def judged_by(
        self, case: AnyCase, *, name: str, asked: str | None, stored: str | None
    ) -> tuple[Requirement, ...]:
        """The requirements that judge a stored case again.

        That is `asked` if given, else `stored`, the requirement of the stored violation, else every requirement that
        applies to the case. The case must be of this target's kind; messages refer to it as `name`.

        Raises:
            UnknownNameError: no requirement has that id, or the case's schedule is not claimed.
            UsageError: the case lies outside the claims, or the requirement asked for does not apply to it.
            NothingJudgedError: no requirement applies to it.
        """

    def against(self, requirement: str, column: str) -> Iterator[AnyCase]:
        """Cases that must expose an implementation that breaks the requirement in this column."""

    def points(self, case: AnyCase) -> frozenset[Point]:
        """The combinations of properties in a case."""

    def reachable(self, columns: Iterable[str]) -> frozenset[Point]:
        """All combinations of properties that cases can have in these columns."""

    def batch_classes(self, case: AnyCase) -> frozenset[str]:
        """How its numbers of microbatches compare with its number of ranks; empty if it has no microbatches."""


def some_of(
    wanted: tuple[Requirement, ...], is_about: Callable[[Requirement], bool], *, asked: str | None
) -> tuple[Requirement, ...]:
    """The `wanted` requirements that apply to a case; `asked` names the only one if the user asked for it.

    Raises:
        UsageError: the requirement asked for does not apply to the case.
        NothingJudgedError: no requirement applies to the case.
    """
    chosen = tuple(filter(is_about, wanted))
    if chosen:
        return chosen
    if asked is not None:
        raise UsageError(
            f"{wanted[0].id} does not apply to this case, or the implementation does not claim what it needs; "
            f"leave --requirement out to judge the case by every requirement that applies"
        )
    raise NothingJudgedError("no requirement applies to this case")
