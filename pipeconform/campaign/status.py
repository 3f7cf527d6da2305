"""The ids of violations and the statuses of cells, for the run that writes a result and the checks of that result."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.case.simpler.candidates import weight
from pipeconform.gate.expectations import Expectation
from pipeconform.report.result import SEVERITY, Cell, Control, Status, Violation

__all__ = ["blocked_by", "identifier_of", "status_of", "with_causes"]


def identifier_of(where: str, what: str) -> str:
    """The id of a violation in a cell, such as ``TRN-4:GPipe:default:1f3a``, from its status and signature."""
    return f"{where}:{hashlib.sha256(what.encode()).hexdigest()[:4]}"


def status_of(violations: tuple[Violation, ...], *, compared: int) -> Status:
    """The status of a judged cell with these violations, whose judgements made `compared` comparisons.

    A cell whose judgements compared nothing has not passed. A cell is blocked if every violation, or every
    confirmed one, is the business of another requirement.
    """
    if not violations and not compared:
        return "nothing_compared"
    if violations and all(violation.blocked_by for violation in violations):
        return "blocked"
    confirmed = [violation for violation in violations if violation.confirmed]
    if violations and not confirmed:
        return "flaky"
    own = [violation.status for violation in confirmed if not violation.blocked_by]
    if confirmed and not own:
        return "blocked"
    return min(own, key=SEVERITY.index, default="passed")


def blocked_by(violations: Iterable[Violation]) -> str:
    """The reason for which a cell is blocked, if all its violations are."""
    names = dict.fromkeys(one.blocked_by for one in violations if one.blocked_by)
    return f"blocked by {', '.join(names)}, which the same case violates without what this requirement adds"


def with_causes(
    cells: Iterable[Cell],
    *,
    expectations: Iterable[Expectation] = (),
    device: str = "cpu",
    torch: str = "",
) -> tuple[Cell, ...]:
    """The cells, each with the violations that controls of other requirements showed and its own cases did not.

    Only cells that were judged are changed. A violation that one of the `expectations` covers, on this `device` with
    this release of `torch`, is expected.
    """
    entries = tuple(expectations)
    found = {(one.requirement, one.schedule, one.variant): one for one in cells}
    seen: dict[tuple[tuple[str, str, str], str, str], list[tuple[Violation, Control]]] = {}
    for cell in found.values():
        for effect in cell.violations:
            key, control = (effect.blocked_by, cell.schedule, cell.variant), effect.control
            owner = found.get(key)
            if control is not None and owner is not None and owner.is_judged and not _shows(owner, control):
                seen.setdefault((key, control.status, control.signature), []).append((effect, control))
    for (key, *_), controls in seen.items():
        owner = found[key]
        cause = _cause(controls, owner)
        covering = (one.label for one in entries if one.covers(owner, cause, device=device, torch=torch))
        cause = msgspec.structs.replace(cause, expected=next(covering, ""))
        violations = (*owner.violations, cause)
        status = status_of(violations, compared=owner.compared)
        found[key] = msgspec.structs.replace(owner, violations=violations, status=status, reason="")
    return tuple(found.values())


def _shown_by(effect: Violation, control: Control) -> AnyCase:
    """The case in which a control showed a violation."""
    return effect.case if control.case is None else control.case


def _weight(case: AnyCase) -> tuple[int, ...]:
    """The sort key of simplicity; cases of wrappers are all alike."""
    return weight(case) if isinstance(case, Case) else ()


def _shows(cell: Cell, control: Control) -> bool:
    """Whether a cell has the violation that a control showed."""
    shown = (control.status, control.signature)
    return any((one.status, one.signature) == shown for one in cell.violations)


def _cause(controls: Sequence[tuple[Violation, Control]], owner: Cell) -> Violation:
    """The violation of the requirement that blocks others, as the simplest of their controls showed it."""
    effect, control = min(controls, key=lambda both: _weight(_shown_by(*both)))
    where = f"{owner.requirement}:{owner.schedule}:{owner.variant}"
    identifier = identifier_of(where, f"{control.status}/{control.signature}")
    case = _shown_by(effect, control)
    return Violation(
        id=identifier,
        status=control.status,
        signature=control.signature,
        message=control.message,
        where=control.where,
        case=case,
        digest=case.digest,
        minimal=False,
        confirmed=True,
        shrink_executions=0,
        occurrences=len({_shown_by(*both).digest for both in controls}),
        verdicts=control.verdicts,
        replay=effect.replay.replace(effect.id, identifier),
        found_by=effect.id,
    )
