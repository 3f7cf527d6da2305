"""Finds out whose business a violation is: executes its case without what its requirement adds.

A requirement accuses by what it adds to a case. If the case shows the same violation without that, a more basic
requirement is violated, and the first one is blocked: it cannot be judged before the other is met. A requirement
that adds nothing, or whose case makes no sense without it, is blocked by an earlier one that sees the same fact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from pipeconform.campaign.runner import CaseT
from pipeconform.campaign.target import Asked
from pipeconform.case.any_case import AnyCase
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.precedence import explains
from pipeconform.report.result import Control
from pipeconform.spec import Requirement

__all__ = ["Answers", "Ask", "Explained", "explained"]

Answers: TypeAlias = Mapping[str, Sequence[Outcome]]
"""The violations that one execution shows, by requirement id."""

_Case_contra = TypeVar("_Case_contra", bound=AnyCase, contravariant=True)


class Ask(Protocol[_Case_contra]):
    """Executes a case once and judges it by several requirements; answers are kept, unless `anew`."""

    def __call__(self, case: _Case_contra, rows: Sequence[Requirement], *, anew: bool = False) -> Answers:
        """The violations that the execution shows, by requirement id."""


_TRIES = 4
"""Executions of a case that shows its violation by chance, until it shows it."""

_LONGEST = 4
"""Steps from a violation to the one that explains it, such as from delayed replicas to replicas to one pipeline."""


class _Seen(NamedTuple, Generic[CaseT]):
    """A violation, and what was changed to find it."""

    asked: Asked[CaseT]
    case: CaseT
    outcome: Outcome
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Explained(Generic[CaseT]):
    """A violation, after its controls were executed."""

    case: CaseT
    """The case that shows it; a control, if the requirement is also about cases without what it added."""
    outcome: Outcome
    control: Control | None
    """The execution that explains the violation, or that does not show it; None if none was made."""


def explained(
    asked: Asked[CaseT],
    case: CaseT,
    outcome: Outcome,
    *,
    ask: Ask[CaseT],
) -> Explained[CaseT]:
    """Follow a violation to the most basic requirement that explains it.

    Raises:
        HarnessError: the harness failed.
        ContractError: the adapter broke its contract.
    """
    seen = _Seen(asked, case, outcome)
    passed: Control | None = None
    for _ in range(_LONGEST):
        found = _more_basic(seen, ask=ask)
        if isinstance(found, Control):
            passed = found
        if found is None or isinstance(found, Control):
            break
        seen = found
    if seen.asked.row.id == asked.row.id:
        own = seen if _kind(seen.outcome) == _kind(outcome) else _Seen(asked, case, outcome)
        return Explained(case=own.case, outcome=own.outcome, control=passed)
    last = seen.outcome
    control = Control(
        words=", ".join(seen.words),
        digest=seen.case.digest,
        requirement=seen.asked.row.id,
        status=last.status.value,
        signature=last.finding.kind,
        message=last.finding.message,
        where=last.finding.where(),
        verdicts=last.verdicts,
        case=None if seen.case == case else seen.case,
    )
    return Explained(case=case, outcome=outcome, control=control)


def _more_basic(seen: _Seen[CaseT], *, ask: Ask[CaseT]) -> _Seen[CaseT] | Control | None:
    """One step towards the cause; the last control if none shows the violation; None if there is nothing to execute."""
    asked, case = seen.asked, seen.case
    passed: Control | None = None
    rows: Sequence[Requirement]
    around = _around(seen, ask=ask)
    if around is not None:
        return around
    for words, control in asked.controls(case):
        there = seen._replace(case=control, words=(*seen.words, words))
        rows = (*asked.explaining(control), *((asked.row,) if asked.applies(control) else ()))
        found = _found(there, rows, ask(control, rows), in_control=True) if rows else None
        if found is not None:
            return found
        if rows and passed is None:
            passed = Control(words=words, digest=control.digest)
    rows = asked.earlier(case, controlled=passed is not None)
    for _ in range(_TRIES if rows else 0):
        answers = ask(case, (asked.row, *rows), anew=True)
        found = _found(seen, rows, answers)
        if found is not None:
            return found
        if any(explains(one, seen.outcome) for one in answers.get(asked.row.id, ())):
            break  # what does not show the violation itself says nothing about its cause
    return passed


def _around(seen: _Seen[CaseT], *, ask: Ask[CaseT]) -> _Seen[CaseT] | Control | None:
    """Whose business it is if a case does not show the violation without what is around its subject."""
    around = seen.asked.surroundings(seen.case)
    if around is None:
        return None
    row, words, control = around
    own = (seen.asked.row,) if seen.asked.applies(control) else ()
    rows = tuple({one.id: one for one in (*own, *seen.asked.explaining(control))}.values())
    if not rows or any(
        _found(seen, rows, ask(control, rows, anew=anew), in_control=True) for anew in (False, True)
    ):
        return None
    if row.id == seen.asked.row.id:
        return Control(words=words, digest=control.digest)
    return _found(seen, (row,), ask(seen.case, (row,), anew=True))


def _found(
    there: _Seen[CaseT], rows: Sequence[Requirement], answers: Answers, *, in_control: bool = False
) -> _Seen[CaseT] | None:
    """The first of these requirements that sees in a case what explains the violation."""
    for row in rows:
        found = answers.get(row.id, ())
        hit = next(
            (one for one in found if explains(one, there.outcome, of=row.id, in_control=in_control)), None
        )
        if hit is not None:
            return there._replace(asked=there.asked.instead(row), outcome=hit)
    return None


def _kind(outcome: Outcome) -> tuple[str, str]:
    return outcome.status.value, outcome.finding.kind
