"""The chapter about data-parallel wrappers.

It is a chapter of its own, not one of `chapters()`: those are judged of pipelines under each schedule that is
claimed, this one of module wrappers, which have no schedule. Whatever reads results knows both.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal

import msgspec

from pipeconform.spec.catalogue import Chapter, Requirement, chapters, named

__all__ = [
    "Kind",
    "all_chapters",
    "all_requirements",
    "any_requirement",
    "chapters_of",
    "wrapper_capabilities",
    "wrapper_chapter",
    "wrapper_requirement",
]

Kind = Literal["pipeline", "wrapper"]
"""What an implementation is: of pipeline parallelism, or a wrapper of data-parallel modules."""


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    text = resources.files("pipeconform.spec").joinpath("data_parallel_wrappers.toml").read_text("utf-8")
    rows: dict[str, dict[str, str]] = {k: v for k, v in tomllib.loads(text).items() if k.startswith("DPW-")}
    return dict(sorted(rows.items(), key=lambda item: int(item[0].partition("-")[2])))


@functools.cache
def wrapper_chapter() -> Chapter:
    """Chapter DPW."""
    rows = [
        msgspec.convert({"id": key, **{k: v for k, v in row.items() if k != "capability"}}, Requirement)
        for key, row in _table().items()
    ]
    return Chapter(id="DPW", title="Data-parallel wrappers", requirements=tuple(rows))


def wrapper_capabilities() -> dict[str, frozenset[str]]:
    """By requirement what a wrapper must claim for it to be judged; empty for what every wrapper owes."""
    listed = {key: row.get("capability", "") for key, row in _table().items()}
    return {key: frozenset(filter(None, text.replace(",", " ").split())) for key, text in listed.items()}


def wrapper_requirement(identifier: str) -> Requirement:
    """The requirement called `identifier`, such as ``DPW-1``; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    return named(identifier, wrapper_chapter().requirements)


def chapters_of(kind: Kind) -> tuple[Chapter, ...]:
    """The chapters that an implementation of this kind is judged by."""
    return chapters() if kind == "pipeline" else (wrapper_chapter(),)


def all_chapters() -> tuple[Chapter, ...]:
    """The whole standard: what is judged of pipelines, then what is judged of wrappers."""
    return (*chapters_of("pipeline"), *chapters_of("wrapper"))


def all_requirements() -> tuple[Requirement, ...]:
    """All of them, in the order of the standard."""
    return tuple(row for chapter in all_chapters() for row in chapter.requirements)


def any_requirement(identifier: str) -> Requirement:
    """The requirement called `identifier`, of pipelines or of wrappers; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    return named(identifier, all_requirements())
