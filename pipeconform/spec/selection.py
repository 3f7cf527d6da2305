"""Parsing of what a user selects: requirements by id or chapter, ranks by number or range."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.spec.catalogue import Chapter, requirements_of
from pipeconform.spec.wrappers import Kind, all_chapters, chapters_of

__all__ = ["MOST_RANKS", "named_requirements", "parse_ranks", "require_requirement", "select_requirements"]

MOST_RANKS = 8
"""The most ranks of a run: more show nothing that eight do not, and each costs a process."""


def parse_ranks(text: str) -> tuple[int, int]:
    """The least and the largest number of pipeline ranks in ``"4"`` (exactly 4) or ``"2-4"``.

    Raises:
        UsageError: it is neither, or not between 1 and `MOST_RANKS`.
    """
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_RANKS:
        raise UsageError(f"--ranks {text!r}: expected N or A-B with 1 ≤ A ≤ B ≤ {MOST_RANKS}")
    return least, most


def select_requirements(asked: Iterable[str], *, kind: Kind = "pipeline") -> frozenset[str]:
    """The ids that ids and chapters mean, in upper or lower case; all of the kind if `asked` is empty.

    Raises:
        UnknownNameError: a name is neither; the message lists the nearest.
        UsageError: a name belongs to requirements for implementations of another kind.
    """
    own = {name for chapter in chapters_of(kind) for name in (chapter.id, *_ids(chapter))}
    names = tuple(asked)
    for name in names:
        require_requirement(name)
        if name.upper() not in own:
            raise UsageError(f"{name.upper()} does not apply: the implementation is a {kind}")
    return named_requirements(names) or frozenset(row.id for row in requirements_of(kind))


def named_requirements(asked: Iterable[str]) -> frozenset[str]:
    """The ids that ids and chapters mean, for pipelines and wrappers.

    Raises:
        UnknownNameError: a name is neither; the message lists the nearest.
    """
    found: set[str] = set()
    for name in asked:
        require_requirement(name)
        found |= _by_name()[name.upper()]
    return frozenset(found)


def require_requirement(name: str) -> None:
    """Raise an error if `name` is neither a requirement nor a chapter, for pipelines or wrappers.

    Raises:
        UnknownNameError: it is neither; the message lists the nearest.
    """
    if name.upper() not in _by_name():
        raise UnknownNameError("requirement or chapter", name, _by_name(), listed_by="pipeconform list")


def _ids(chapter: Chapter) -> tuple[str, ...]:
    return tuple(row.id for row in chapter.requirements)


def _by_name() -> dict[str, frozenset[str]]:
    ids = {one: frozenset({one}) for chapter in all_chapters() for one in _ids(chapter)}
    return ids | {chapter.id: frozenset(_ids(chapter)) for chapter in all_chapters()}
