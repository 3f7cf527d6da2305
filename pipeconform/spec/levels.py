"""Certification levels: which requirements, on how many examples, over which sizes.

A level also says how much must have been judged before a pass counts, so that a certificate can never rest on tests
that did not run.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Literal

import msgspec

from pipeconform.errors import LevelUnavailableError, UnknownNameError
from pipeconform.spec.catalogue import STANDARD_VERSION, Level, Requirement, requirements_of
from pipeconform.spec.wrappers import Kind, chapters_of

__all__ = [
    "BatchClass",
    "CertificationLevel",
    "batch_class",
    "certification_level",
    "certification_levels",
    "core_requirements",
    "including",
    "mandatory",
    "missing",
    "needed_claims",
]

BatchClass = Literal["one", "fewer", "equal", "more"]
"""The number of microbatches m compared with the number of ranks p: 1, fewer than p, p, more than p."""


_LEAST_ROOM = 4


class CertificationLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be claimed, judged and met for one level."""

    name: str
    title: str
    summary: str
    kind: Kind = "pipeline"
    """The kind of implementation to which it is granted."""
    includes: tuple[str, ...] = ()
    """Levels that are part of this one."""
    requirements: tuple[str, ...]
    """Chapters (their MUST requirements) and ids, in addition to those of the included levels."""
    core: tuple[str, ...]
    """Requirements that cannot be left unclaimed."""
    claims: tuple[tuple[str, str], ...] = ()
    """Claims that it needs, in addition to those of the included levels: names and descriptions."""
    draws: int
    """Cases drawn per subject and schedule; the seed is fixed."""
    examples: int
    """The fewest distinct cases with which a requirement counts as judged under one schedule."""
    ranks: tuple[int, ...]
    """Numbers of ranks p, each judged under every schedule that claims it."""
    stages_per_rank: tuple[int, ...]
    """Numbers of stages per rank v, each judged under every schedule that claims it."""
    microbatches: tuple[BatchClass, ...]
    """Classes of numbers of microbatches m, each judged under every schedule that claims it."""
    min_schedules: int
    """The fewest schedules that must be claimed."""
    not_claimed: float
    """The share of the mandatory requirements that may be claimed under no schedule, 0 to 1."""

    @property
    def max_ranks(self) -> int:
        """The most ranks that a case may take: for some subjects (stages cut over ranks) at least four."""
        return max(self.ranks) if self.kind == "wrapper" else max(*self.ranks, _LEAST_ROOM)


def batch_class(*, num_ranks: int, num_microbatches: int) -> BatchClass:
    """The class of m for p ranks."""
    if num_microbatches == 1:
        return "one"
    if num_microbatches < num_ranks:
        return "fewer"
    return "equal" if num_microbatches == num_ranks else "more"


@functools.cache
def certification_levels() -> tuple[CertificationLevel, ...]:
    """All levels in the order of the standard, including those that are not available yet."""
    text = resources.files("pipeconform.spec").joinpath("levels.toml").read_text("utf-8")
    return tuple(
        msgspec.convert({"name": name, **row}, CertificationLevel)
        for name, row in tomllib.loads(text).items()
    )


def certification_level(name: str) -> CertificationLevel:
    """The level called `name`; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    known = {level.name: level for level in certification_levels()}
    if name.casefold() not in known:
        raise UnknownNameError("level", name, known, listed_by="pipeconform list --levels")
    return known[name.casefold()]


def missing(level: CertificationLevel) -> tuple[str, ...]:
    """The chapters and requirements of a level that this version of the standard does not have."""
    chosen = {chapter.id for chapter in chapters_of(level.kind) if chapter.requirements}
    chosen |= {row.id for row in requirements_of(level.kind)}
    return tuple(dict.fromkeys(name for name in _selectors(level) if name not in chosen))


def mandatory(level: CertificationLevel) -> tuple[Requirement, ...]:
    """The requirements that decide about a level, in the order of the standard.

    Raises:
        LevelUnavailableError: the standard lacks some of them.
    """
    absent = missing(level)
    if absent:
        raise LevelUnavailableError(
            f"level {level.title} is not available in this version of the standard "
            f"({STANDARD_VERSION}): it has no {', '.join(absent)} yet"
        )
    wanted = set(_selectors(level))
    return tuple(
        row
        for chapter in chapters_of(level.kind)
        for row in chapter.requirements
        if row.id in wanted or (chapter.id in wanted and row.level is Level.MUST)
    )


def core_requirements(level: CertificationLevel) -> tuple[str, ...]:
    """The ids that cannot be left unclaimed, including those of the included levels."""
    found = [name for one in _with_included(level) for name in one.core]
    return tuple(dict.fromkeys(found))


def including(level: CertificationLevel) -> tuple[CertificationLevel, ...]:
    """The levels of which `level` is a part, in the order of the standard."""
    return tuple(one for one in certification_levels() if one != level and level in _with_included(one))


def needed_claims(level: CertificationLevel) -> dict[str, str]:
    """What must be claimed, including for the included levels: descriptions by name."""
    return {name: words for one in _with_included(level) for name, words in one.claims}


def _selectors(level: CertificationLevel) -> tuple[str, ...]:
    return tuple(name for one in _with_included(level) for name in one.requirements)


def _with_included(level: CertificationLevel) -> tuple[CertificationLevel, ...]:
    found = [inner for name in level.includes for inner in _with_included(certification_level(name))]
    return tuple(dict.fromkeys([*found, level]))
