"""How a status looks on a page: a symbol, a word, and only then a colour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pipeconform.report.result import Cell, Status
from pipeconform.report.words import EXPECTED as _KNOWN
from pipeconform.report.words import WORDS

__all__ = ["EXPECTED", "NOT_RUN", "StatusView", "cell_view", "status_view"]


@dataclass(frozen=True, kw_only=True)
class StatusView:
    """A status as the page shows it."""

    key: str
    """In class names and filters."""
    letter: str
    """The same, short: thousands of cells carry it."""
    symbol: str
    word: str
    meaning: str


_LOOKS: Mapping[Status, tuple[str, str, str]] = MappingProxyType(
    {
        "passed": ("p", "✓", "met in every case that was judged"),
        "failed": ("f", "✗", "a wrong value, order or state"),
        "hung": ("h", "∞", "ranks waited for one another until they were ended"),
        "crashed": ("c", "↯", "a rank's process died"),
        "error": ("e", "!", "a rank raised, or the cell could not be judged"),
        "flaky": ("k", "~", "wrong in one execution and right in another of the same case"),
        "nothing_compared": ("v", "∅", "judged, but no case gave anything to compare"),
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
"""For a cell that another result has."""


EXPECTED = StatusView(
    key="expected", letter="w", symbol="(✗)", word=_KNOWN, meaning="violated, in ways that are expected only"
)
"""For a cell whose violations are all expected."""


def cell_view(cell: Cell | None) -> StatusView:
    """How a cell looks; None stands for one that a result does not have."""
    if cell is None:
        return NOT_RUN
    return EXPECTED if cell.is_expected else status_view(cell.status)


def status_view(status: Status) -> StatusView:
    """How `status` looks."""
    letter, symbol, meaning = _LOOKS[status]
    return StatusView(
        key=status, letter=letter, symbol=symbol, word=_WORDS.get(status, WORDS[status]), meaning=meaning
    )
