"""Counter-examples of the run before, executed first in the next one.

A violation that was found once is the likeliest to be found again, crashes and hangs above all, and its case is
small already. What no longer shows it is forgotten with the next result.
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
    """Violations of an earlier run, by cell; of the same implementation, whatever its version."""

    by_cell: Mapping[Where, tuple[Violation, ...]] = field(default_factory=dict)

    def of(self, where: Where) -> tuple[Violation, ...]:
        """Those of one cell."""
        return self.by_cell.get(where, ())


def earlier_in(result: Path, *, implementation: str) -> Earlier:
    """The violations in a result file; none if it cannot be read or is about another implementation.

    `implementation` is the name that the adapter gives itself. Violations that were expected are not among
    them: their cases are stored with the expectations.
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
