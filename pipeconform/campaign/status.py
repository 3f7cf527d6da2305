"""The id of a violation and the status of a cell, for the run that writes a result and the checks of that result."""

from __future__ import annotations

import hashlib

from pipeconform.report.result import SEVERITY, Status, Violation

__all__ = ["identifier_of", "status_of"]


def identifier_of(where: str, what: str) -> str:
    """The id of a violation in a cell, such as ``TRN-4:GPipe:default:1f3a``, from its status and signature."""
    return f"{where}:{hashlib.sha256(what.encode()).hexdigest()[:4]}"


def status_of(violations: tuple[Violation, ...], *, compared: int) -> Status:
    """The status of a judged cell with these violations, whose judgements made `compared` comparisons.

    A cell whose judgements compared nothing has not passed. A cell is blocked if every confirmed violation is the
    business of another requirement.
    """
    if not violations and not compared:
        return "nothing_compared"
    confirmed = [violation for violation in violations if violation.confirmed]
    if violations and not confirmed:
        return "flaky"
    own = [violation.status for violation in confirmed if not violation.blocked_by]
    if confirmed and not own:
        return "blocked"
    return min(own, key=SEVERITY.index, default="passed")
