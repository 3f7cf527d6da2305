"""Counter-examples of the previous run, executed first in the next one.

A violation that was found once is the most likely to be found again, crashes and hangs above all, and its case is
already small. A case that no longer shows its violation is missing from the next result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeconform.errors import BadResultError
from pipeconform.report.result import Violation, read_result

__all__ = ["Earlier", "earlier_in"]

Where = tuple[str, str, str]
"""Requirement, schedule and environment variant."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """Violations of an earlier run of the same implementation, in any version, by cell."""

    by_cell: Mapping[Where, tuple[Violation, ...]] = field(default_factory=dict)

    def of(self, where: Where) -> tuple[Violation, ...]:
        """The violations of one cell."""
        return self.by_cell.get(where, ())


def earlier_in(result: Path, *, implementation: str) -> Earlier:
    """The violations in a result file; none if it cannot be read or is about another implementation.

    `implementation` is the name in the adapter's description. Expected violations are left out: their cases are
    stored with the expectations.
    """
    try:
        found = read_result(result)
    except BadResultError:
        return Earlier()
    if found.implementation.name != implementation:
        return Earlier()
    return Earlier(
        by_cell={
            (cell.requirement, cell.schedule, cell.variant): kept
            for cell in found.cells
            if (kept := tuple(one for one in cell.violations if not one.expected))
        }
    )
