"""What a reader must know before relying on a violation's smallest case."""

from __future__ import annotations

from pipeconform.report.result import Violation
from pipeconform.report.words import plural

__all__ = ["reservation"]


def reservation(violation: Violation) -> str:
    """One sentence, or nothing: it did not show every time, or its case is not as small as it could be."""
    again = (
        f"executed again, the case showed it {violation.shown_again} of {plural(violation.reruns, 'time')}"
    )
    if violation.shown_otherwise:
        again += f", and another violation {plural(violation.shown_otherwise, 'time')}"
    if not violation.confirmed:
        return f"flaky: {again}"
    if violation.shown_otherwise:
        return f"wrong each time, but not always alike: {again}"
    return "" if violation.minimal else "not minimal: the budget for shrinking ran out"
