"""The requirements as data, as the suites state them.

A requirement is written in one place, in ``suites/``: what it demands, why, what it rests on, and how it is judged.
Only `statements` loads that package, and it does so by name: the suites import pipeconform, so no module of
pipeconform imports the suites.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol, TypeVar

import msgspec

from pipeconform.errors import UnknownNameError

__all__ = [
    "CONTRACT",
    "MUST",
    "SHOULD",
    "STANDARD_VERSION",
    "SUITES",
    "Chapter",
    "Heading",
    "Kind",
    "Level",
    "Promise",
    "Requirement",
    "Statement",
    "chapters",
    "chapters_of",
    "in_order",
    "named",
    "requirement",
    "requirements",
    "requirements_of",
    "stated",
    "statements",
    "statements_in",
]

SUITES = "pipeconform.suites"
"""The package that states the standard."""

CONTRACT = "pipeconform.adapter."
"""How the text of a promise begins that adapters make by implementing the contract; it needs no link."""

Kind = Literal["pipeline", "wrapper"]
"""The two kinds of implementations: of pipeline parallelism, and wrappers of data-parallel modules."""

STANDARD_VERSION = "0.1"
"""The version of the standard, which changes when its rules change and not with releases of pipeconform."""


class Level(StrEnum):
    """How binding a requirement is (RFC 2119)."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


MUST, SHOULD = Level.MUST, Level.SHOULD


class Promise(msgspec.Struct, frozen=True):
    """A promise on which a requirement rests: who made it, and where."""

    text: str
    link: str = ""
    """Where it can be read; empty if it has no public page."""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement of the standard."""

    id: str
    title: str
    level: Level
    statement: str
    rationale: str
    promise: tuple[Promise, ...]
    tolerates_errors: bool = False
    """Whether an exception on every rank that took part also meets the requirement (a refusal is allowed)."""

    @property
    def source(self) -> str:
        """The texts of all promises, joined."""
        return "; ".join(promise.text for promise in self.promise)

    @property
    def links(self) -> tuple[str, ...]:
        """The links of all promises, without repetition."""
        return tuple(dict.fromkeys(promise.link for promise in self.promise if promise.link))


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """A chapter's heading, which its package defines as ``CHAPTER``."""

    id: str
    title: str
    kind: Kind = "pipeline"
    """The kind of implementation that is judged by its requirements."""


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """A chapter of the standard: abbreviation, title and requirements in order."""

    id: str
    title: str
    requirements: tuple[Requirement, ...]
    kind: Kind = "pipeline"


class Statement(Protocol):
    """A requirement as a suite states it, together with its judgement."""

    @property
    def requirement(self) -> Requirement:
        """The requirement as data."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """The features that an implementation must claim for the requirement to apply."""
        ...

    @property
    def line(self) -> int:
        """The line of its file on which it begins."""
        ...


def stated(
    function: object,
    identifier: str,
    *,
    title: str,
    level: Level,
    promise: Promise | tuple[Promise, ...],
    tolerates_errors: bool = False,
) -> Requirement:
    """The requirement that a function of a suite states: its docstring is the sentence, then the reason for it.

    Raises:
        ValueError: the docstring does not have exactly two paragraphs (``python -OO`` removes docstrings).
    """
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    if len(paragraphs) != 2:
        raise ValueError(f"{identifier}: expected two paragraphs, the sentence and the reason for it")
    sentence, reason = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return Requirement(
        id=identifier,
        title=title,
        level=level,
        statement=sentence,
        rationale=reason,
        promise=promise if isinstance(promise, tuple) else (promise,),
        tolerates_errors=tolerates_errors,
    )


S = TypeVar("S", bound=Statement)


@functools.cache
def statements() -> dict[str, dict[str, Statement]]:
    """All requirements with their judgements, by module and function name; chapters in the order of the standard."""
    suites = importlib.import_module(SUITES)
    found: dict[str, dict[str, Statement]] = {}
    for name in suites.CHAPTERS:
        chapter = importlib.import_module(f"{SUITES}.{name}")
        for module in sorted(one.name for one in pkgutil.iter_modules(chapter.__path__)):
            place = f"{chapter.__name__}.{module}"
            found[place] = _stated_in(importlib.import_module(place))
    return found


def _stated_in(module: ModuleType) -> dict[str, Statement]:
    return {
        name: one
        for name, one in vars(module).items()
        if isinstance(getattr(one, "requirement", None), Requirement)
    }


def statements_in(path: Path) -> dict[str, Statement]:
    """The requirements of one file of the suites, by function name; empty if the file states none."""
    return statements().get(f"{SUITES}.{path.parent.name}.{path.stem}", {})


@functools.cache
def _all_chapters() -> tuple[Chapter, ...]:
    suites = importlib.import_module(SUITES)
    return tuple(_chapter(f"{SUITES}.{name}") for name in suites.CHAPTERS)


def _chapter(package: str) -> Chapter:
    heading: Heading = importlib.import_module(package).CHAPTER
    rows = [
        one.requirement
        for module, found in statements().items()
        if module.startswith(f"{package}.")
        for one in found.values()
    ]
    rows.sort(key=lambda row: int(row.id.partition("-")[2]))
    assert all(row.id.partition("-")[0] == heading.id for row in rows), f"{package} has a foreign requirement"
    assert len({row.id for row in rows}) == len(rows), f"{package} states a requirement twice"
    return Chapter(id=heading.id, title=heading.title, requirements=tuple(rows), kind=heading.kind)


def in_order(kind: type[S]) -> dict[str, S]:
    """The statements of one type by requirement, in the order of the standard."""
    found = {
        one.requirement.id: one
        for own in statements().values()
        for one in own.values()
        if isinstance(one, kind)
    }
    return {
        row.id: found[row.id]
        for chapter in _all_chapters()
        for row in chapter.requirements
        if row.id in found
    }


def chapters_of(kind: Kind) -> tuple[Chapter, ...]:
    """The chapters that an implementation of this kind is judged by, in the order of the standard."""
    return tuple(chapter for chapter in _all_chapters() if chapter.kind == kind)


def chapters() -> tuple[Chapter, ...]:
    """The chapters about pipelines."""
    return chapters_of("pipeline")


@functools.cache
def requirements_of(kind: Kind) -> tuple[Requirement, ...]:
    """All requirements for implementations of this kind, in the order of the standard."""
    return tuple(row for chapter in chapters_of(kind) for row in chapter.requirements)


def requirements() -> tuple[Requirement, ...]:
    """All requirements about pipelines, in the order of the standard."""
    return requirements_of("pipeline")


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
        raise UnknownNameError("requirement", identifier, known, listed_by="pipeconform list")
    return known[identifier.upper()]
