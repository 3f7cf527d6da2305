"""What changed between two results in words and counts, the same in ``compare`` and on the page of two results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from pipeconform.report.change import Kind

__all__ = ["CAUSE_WORDS", "CHANGE_WORDS", "CauseWord", "as_before", "cause_headline", "cell_counts"]

CauseWord = Literal["new", "worse", "fixed", "lost", "same"]
"""As `CauseKind`, where a cause of both results that violates more than before is *worse*."""

CAUSE_WORDS: Mapping[CauseWord, str] = MappingProxyType(
    {"new": "new", "worse": "worse", "fixed": "fixed", "lost": "no longer judged", "same": "as before"}
)

CHANGE_WORDS: Mapping[Kind, str] = MappingProxyType(
    {
        "regressed": "regressed",
        "new": "newly judged, and violated",
        "flaky": "flaky",
        "lost": "no longer judged",
        "less": "judged on less",
        "sometimes": "flaky, but known",
        "reworded": "reported in other words",
        "elsewhere": "shown by another requirement before",
        "effect": "affected by other violations",
        "fixed": "fixed",
        "added": "newly judged, and met",
    }
)
"""What became of cells, what blocks a gate first."""


_HEADLINE: tuple[CauseWord, ...] = ("fixed", "worse", "new")


def cause_headline(causes: Iterable[CauseWord]) -> str:
    """``3 fixed, 0 worse, 1 new``: the three are always said."""
    count = Counter(causes)
    return ", ".join(f"{count[one]} {CAUSE_WORDS[one]}" for one in _HEADLINE)


def as_before(causes: Iterable[CauseWord]) -> str:
    """``12 as before, 1 no longer judged``; empty if there is none."""
    count = Counter(causes)
    rest: tuple[CauseWord, ...] = ("same", "lost")
    return ", ".join(f"{count[one]} {CAUSE_WORDS[one]}" for one in rest if count[one])


def cell_counts(cells: Mapping[Kind, int], *, unchanged: int) -> str:
    """``1 cell regressed, 86 no longer judged, 17 unchanged``; kinds without any cell are left out."""
    counts = [(cells[kind], words) for kind, words in CHANGE_WORDS.items() if cells.get(kind)]
    (first, words), *others = [*counts, (unchanged, "unchanged")]
    head = f"{first} cell{'' if first == 1 else 's'} {words}"
    return ", ".join([head, *(f"{number} {said}" for number, said in others)])
