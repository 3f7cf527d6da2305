"""Reading the catalogue of requirements."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable
from enum import StrEnum
from importlib import resources

import msgspec

from pipeconform.errors import UnknownNameError

__all__ = ["Chapter", "Level", "Requirement", "chapters", "named", "requirement", "requirements"]


class Level(StrEnum):
    """How binding a requirement is (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class Requirement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One requirement of the standard."""

    id: str
    title: str
    level: Level
    statement: str
    rationale: str
    source: str
    tolerates_errors: bool = False
    """An exception on every rank that took part also meets the requirement (a refusal is allowed)."""


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """A chapter: an abbreviation, a title and requirements in order."""

    id: str
    title: str
    requirements: tuple[Requirement, ...]


def _number(identifier: str) -> tuple[str, int]:
    chapter, _, number = identifier.partition("-")
    return chapter, int(number)


@functools.cache
def chapters() -> tuple[Chapter, ...]:
    """All chapters, in the order of the standard."""
    found = []
    for name in (
        "forward",
        "training",
        "split_backward",
        "schedules",
        "errors",
        "communication",
        "lifecycle",
        "data_parallel",
        "tracing",
    ):
        text = resources.files("pipeconform.spec").joinpath(f"{name}.toml").read_text("utf-8")
        table = tomllib.loads(text)
        identifier, title = table.pop("chapter"), table.pop("title")
        rows = [msgspec.convert({"id": key, **row}, Requirement) for key, row in table.items()]
        rows.sort(key=lambda row: _number(row.id))
        assert all(re.fullmatch(rf"{identifier}-\d+", row.id) for row in rows)
        found.append(Chapter(id=identifier, title=title, requirements=tuple(rows)))
    return tuple(found)


def requirements() -> tuple[Requirement, ...]:
    """All requirements, in the order of the standard."""
    return tuple(row for chapter in chapters() for row in chapter.requirements)


def requirement(identifier: str) -> Requirement:
    """The requirement called `identifier`, such as ``FWD-1``; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    return named(identifier, requirements())


def named(identifier: str, rows: Iterable[Requirement]) -> Requirement:
    """The one of `rows` that is called `identifier`; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    known = {row.id: row for row in rows}
    if identifier.upper() not in known:
        raise UnknownNameError("requirement", identifier, known)
    return known[identifier.upper()]
