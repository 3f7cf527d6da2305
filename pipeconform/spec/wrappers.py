"""The whole standard: the chapters about pipelines and the one about data-parallel wrappers.

The latter is not one of `chapters()`: pipelines are judged by those under each schedule that they claim, module
wrappers, which have no schedules, by this one. Code that reads results knows both.
"""

from __future__ import annotations

from pipeconform.spec.catalogue import (
    Chapter,
    Kind,
    Requirement,
    chapters_of,
    named,
    requirements_of,
    statements,
)

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


def wrapper_chapter() -> Chapter:
    """Chapter DPW."""
    (chapter,) = chapters_of("wrapper")
    return chapter


def wrapper_capabilities() -> dict[str, frozenset[str]]:
    """For each requirement, what a wrapper must claim to be judged by it; empty if it applies to every wrapper."""
    needs = {one.requirement.id: one.needs for found in statements().values() for one in found.values()}
    return {row.id: frozenset(map(str, needs[row.id])) for row in wrapper_chapter().requirements}


def wrapper_requirement(identifier: str) -> Requirement:
    """The requirement called `identifier`, such as ``DPW-1``; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    return named(identifier, wrapper_chapter().requirements)


def all_chapters() -> tuple[Chapter, ...]:
    """All chapters: those about pipelines, then the one about wrappers."""
    return (*chapters_of("pipeline"), *chapters_of("wrapper"))


def all_requirements() -> tuple[Requirement, ...]:
    """All requirements, in the order of the standard."""
    return (*requirements_of("pipeline"), *requirements_of("wrapper"))


def any_requirement(identifier: str) -> Requirement:
    """The requirement called `identifier`, for pipelines or wrappers; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    return named(identifier, all_requirements())
