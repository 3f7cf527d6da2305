"""How a status looks on a page: a symbol and a word, so that colour is not needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pipeconform.report.result import SEVERITY, Cell, Status, Violation
from pipeconform.report.words import EXPECTED as _KNOWN
from pipeconform.report.words import WORDS

__all__ = [
    "EXPECTED",
    "NOT_RUN",
    "StatusView",
    "cell_view",
    "status_view",
    "telling",
    "violation_views",
    "worst_first",
]


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """A status as the page shows it."""

    key: str
    """Its name in CSS classes and filters."""
    letter: str
    """A one-letter form of `key`, because a page may have thousands of cells."""
    symbol: str
    word: str
    meaning: str


_LOOKS: Mapping[Status, tuple[str, str, str]] = MappingProxyType(
    {
        "passed": ("p", "✓", "met in every case that was judged"),
        "failed": ("f", "✗", "a wrong value, order or state"),
        "hung": ("h", "∞", "ranks waited for one another until they were stopped"),
        "crashed": ("c", "↯", "a rank's process died"),
        "error": ("e", "!", "a rank raised, or the cell could not be judged"),
        "flaky": ("k", "~", "wrong in one execution of a case and right in another"),
        "blocked": ("b", "⊘", "violated, but only where another requirement is violated, too"),
        "nothing_compared": ("v", "∅", "judged, but in no case was there anything to compare"),
        "not_claimed": ("n", "–", "the implementation does not claim it"),
        "skipped": ("s", "○", "not judged in this run"),
    }
)

_WORDS: Mapping[Status, str] = MappingProxyType(
    {"nothing_compared": "nothing compared", "not_claimed": "not claimed"}
)

NOT_RUN = StatusView(
    key="not_run", letter="x", symbol="·", word="not run", meaning="no such cell in this result"
)
"""The view of a cell that only another result has."""


EXPECTED = StatusView(
    key="expected", letter="w", symbol="(✗)", word=_KNOWN, meaning="violated, but only in expected ways"
)
"""The view of a cell whose violations are all expected."""


def cell_view(cell: Cell | None) -> StatusView:
    """The view of a cell; None stands for one that the result does not have."""
    if cell is None:
        return NOT_RUN
    return EXPECTED if cell.is_expected else status_view(cell.status)


def status_view(status: Status) -> StatusView:
    """The view of `status`."""
    letter, symbol, meaning = _LOOKS[status]
    return StatusView(
        key=status, letter=letter, symbol=symbol, word=_WORDS.get(status, WORDS[status]), meaning=meaning
    )


def violation_views(violation: Violation) -> tuple[StatusView, ...]:
    """The view of one violation, in the words that cells have for it; before it, whether it is expected."""
    status: Status = violation.status if violation.confirmed else "flaky"
    if violation.blocked_by:
        status = "blocked"
    view = status_view(status)
    return (EXPECTED, view) if violation.expected else (view,)


def telling(cell: Cell) -> Violation | None:
    """The violation from which a cell has its status; None if it has no violation."""
    view = cell_view(cell)
    return next(
        (one for one in cell.violations if view in violation_views(one)), next(iter(cell.violations), None)
    )


def worst_first(views: Iterable[StatusView]) -> tuple[StatusView, ...]:
    """The views, each once, in the order of severity."""
    order = [*map(status_view, SEVERITY), EXPECTED, NOT_RUN]
    return tuple(sorted(dict.fromkeys(views), key=order.index))
