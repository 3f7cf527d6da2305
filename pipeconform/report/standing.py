"""Where a result stands: each requirement, each chapter and each certification level in one word.

A level is compared with what this run judged. A certificate demands more (how many cases, which sizes), so a level
that is met here is not yet granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pipeconform.report.causes import Cause
from pipeconform.report.result import Cell, Result
from pipeconform.spec import CertificationLevel, certification_levels, core_requirements, mandatory, missing
from pipeconform.spec.wrappers import all_chapters

__all__ = [
    "STANDINGS",
    "ChapterStanding",
    "LevelStanding",
    "Standing",
    "chapter_standings",
    "level_standings",
    "standings",
]

Standing = Literal["met", "violated", "blocked", "unjudged", "not_claimed"]
"""How a result stands to one requirement.

violated: under some schedule, expected or not; blocked: violated only where another requirement is, too; unjudged:
claimed, and no verdict was reached; not_claimed: under no schedule.
"""

STANDINGS: tuple[Standing, ...] = get_args(Standing)


@dataclass(frozen=True, kw_only=True)
class ChapterStanding:
    """The requirements of one chapter by their standing, each list in the order of the standard."""

    identifier: str
    title: str
    requirements: Mapping[Standing, tuple[str, ...]]

    def count(self, standing: Standing) -> int:
        """How many requirements stand so."""
        return len(self.requirements[standing])

    @property
    def total(self) -> int:
        """How many requirements of the chapter the result has."""
        return sum(map(len, self.requirements.values()))


@dataclass(frozen=True, kw_only=True)
class LevelStanding:
    """One certification level, and which of its requirements keep it from being met."""

    name: str
    title: str
    state: Standing
    total: int
    """How many requirements decide about it."""
    in_the_way: tuple[str, ...]
    """The requirements that are violated, blocked, unjudged or not claimed, whichever `state` names."""


def standings(result: Result, *, causes: Sequence[Cause]) -> dict[str, Standing]:
    """The standing of every requirement that the result has, or that controls show to be violated.

    `causes` are those of the result.
    """
    wrong = {name for cause in causes for name in cause.requirements}
    cells: dict[str, list[Cell]] = {}
    for cell in result.cells:
        cells.setdefault(cell.requirement, []).append(cell)
    return {
        **{name: "violated" if name in wrong else _standing(several) for name, several in cells.items()},
        **dict.fromkeys(wrong - cells.keys(), "violated"),
    }


def _standing(cells: Iterable[Cell]) -> Standing:
    """The standing of a requirement that no cause accuses."""
    found = {cell.status for cell in cells}
    if "blocked" in found:
        return "blocked"
    if found & {"crashed", "hung", "failed", "error", "flaky"}:
        return "unjudged"  # no violation stands behind it: the harness failed there
    if "passed" in found:
        return "met"
    return "not_claimed" if "not_claimed" in found <= {"not_claimed", "skipped"} else "unjudged"


def chapter_standings(found: Mapping[str, Standing]) -> tuple[ChapterStanding, ...]:
    """The chapters that have any of these requirements, also those that the standard lacks, which come last."""
    chapters = {chapter.id: chapter.title for chapter in all_chapters()}
    order = {row.id: at for at, row in enumerate(r for c in all_chapters() for r in c.requirements)}
    by_chapter: dict[str, list[str]] = {name: [] for name in chapters}
    for name in sorted(found, key=lambda name: order.get(name, len(order))):
        by_chapter.setdefault(name.partition("-")[0], []).append(name)
    return tuple(
        ChapterStanding(
            identifier=identifier,
            title=chapters.get(identifier, ""),
            requirements={one: tuple(name for name in names if found[name] == one) for one in STANDINGS},
        )
        for identifier, names in by_chapter.items()
        if names
    )


def level_standings(result: Result, found: Mapping[str, Standing]) -> tuple[LevelStanding, ...]:
    """The levels that this kind of implementation can be granted, in the order of the standard."""
    return tuple(
        _level(level, found, complete=result.run.complete)
        for level in certification_levels()
        if level.kind == result.implementation.kind and not missing(level)
    )


def _level(level: CertificationLevel, found: Mapping[str, Standing], *, complete: bool) -> LevelStanding:
    wanted = [row.id for row in mandatory(level)]
    names: dict[Standing, list[str]] = {}
    for name in wanted:
        names.setdefault(found.get(name, "unjudged"), []).append(name)
    core = [name for name in core_requirements(level) if name in names.get("not_claimed", ())]
    unclaimed = core or names.get("not_claimed", [])
    is_unclaimed = bool(core) or len(unclaimed) > level.not_claimed * len(wanted)
    state: Standing = "met" if complete else "unjudged"
    in_the_way: list[str] = []
    reasons: tuple[Standing, ...] = ("violated", "blocked", "not_claimed", "unjudged")
    for reason in reasons:
        if names.get(reason) and (reason != "not_claimed" or is_unclaimed):
            state, in_the_way = reason, unclaimed if reason == "not_claimed" else names[reason]
            break
    return LevelStanding(
        name=level.name, title=level.title, state=state, total=len(wanted), in_the_way=tuple(in_the_way)
    )
