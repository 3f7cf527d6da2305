"""What a user selects, in words: requirements by id or chapter, ranks by number or range."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.spec.catalogue import chapters, requirements

__all__ = ["MOST_RANKS", "parse_ranks", "select_requirements"]

MOST_RANKS = 8
"""More ranks show nothing that eight do not, and cost a process each."""


def parse_ranks(text: str) -> tuple[int, int]:
    """The least and the largest number of pipeline ranks in ``"4"`` (exactly 4) or ``"2-4"``.

    Raises:
        UsageError: it is neither, or not within 1 to `MOST_RANKS`.
    """
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_RANKS:
        raise UsageError(f"--ranks {text!r}: expected N or A-B with 1 ≤ A ≤ B ≤ {MOST_RANKS}")
    return least, most


def select_requirements(asked: Iterable[str]) -> frozenset[str]:
    """The ids meant by ids and chapters, whatever the case of their letters; all when nothing is asked for.

    Raises:
        UnknownNameError: a name is neither; the message lists the nearest.
    """
    by_name: dict[str, frozenset[str]] = {row.id: frozenset({row.id}) for row in requirements()}
    by_name |= {chapter.id: frozenset(row.id for row in chapter.requirements) for chapter in chapters()}
    found: set[str] = set()
    for name in asked:
        if name.upper() not in by_name:
            raise UnknownNameError("requirement or chapter", name, by_name)
        found |= by_name[name.upper()]
    return frozenset(found) or frozenset(row.id for row in requirements())
