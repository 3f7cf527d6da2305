"""Certification levels, profiles and the standard's change log in words, for ``list`` and ``show``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from pipeconform.spec import (
    CertificationLevel,
    Profile,
    Requirement,
    StandardVersion,
    core_requirements,
    mandatory,
    missing,
)
from pipeconform.spec.levels import needed_claims
from pipeconform.spec.wrappers import all_chapters

__all__ = [
    "aligned",
    "describe_changes",
    "describe_level",
    "describe_profile",
    "list_changes",
    "list_levels",
    "list_profiles",
]

_BATCHES = {"one": "m = 1", "fewer": "m < p", "equal": "m = p", "more": "m > p"}
_LABEL, _WIDTH = 14, 88  # columns


def list_levels(levels: Sequence[CertificationLevel], *, version: str) -> str:
    """The levels, one line each; levels that cannot be granted are marked."""
    rows = [[level.name, _number(level), level.summary] for level in levels]
    last = f"{len(levels)} levels, standard {version}; 'pipeconform show LEVEL' prints one in full"
    return "\n".join([*aligned(rows), "", last])


def list_profiles(profiles: Sequence[Profile]) -> str:
    """The profiles of a run, one line each."""
    return "\n".join(aligned([[one.name, one.summary] for one in profiles]))


def list_changes(versions: Sequence[StandardVersion]) -> str:
    """The change log of the standard, newest first."""
    return "\n\n".join(describe_changes(version) for version in versions)


def describe_changes(version: StandardVersion) -> str:
    """What one version of the standard changed."""
    lines = [f"{version.version}  ({version.date})"]
    for change in version.changes:
        lines += textwrap.wrap(change, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines)


def describe_level(level: CertificationLevel, *, version: str) -> str:
    """A level in full: what it demands, and whether this version of the standard can grant it."""
    everything = "; and whatever else its requirements need" if not level.not_claimed else ""
    absent = missing(level)
    if absent:
        state = f"not available in this version of the standard: it has no {', '.join(absent)} yet"
        chosen: Sequence[Requirement] = ()
    else:
        state, chosen = "available", mandatory(level)
    rows = {
        "State": state,
        "Includes": ", ".join(level.includes),
        "Requirements": f"{len(chosen)}, see below"
        if chosen
        else f"{', '.join(level.requirements)} and those of the included levels",
        "Must claim": "; ".join(needed_claims(level).values()) + everything,
        "Never left out": "those with an asterisk",
        "Cases": f"{level.draws} drawn per subject and schedule, at least {level.examples} distinct ones "
        f"judged per requirement and schedule",
        "Sizes": f"p = {_listed(level.ranks)}; v = {_listed(level.stages_per_rank)}; "
        f"{', '.join(_BATCHES[one] for one in level.microbatches)}: "
        f"each that a schedule claims, under that schedule; at least one p ≥ 2",
        "Schedules": f"at least {level.min_schedules}",
        "Not claimed": f"at most {level.not_claimed:.0%} of the requirements",
    }
    if level.kind == "wrapper":
        rows |= {
            "Cases": "all that are listed for what it claims",
            "Sizes": f"{_listed(level.ranks)} replicas, as far as it claims so many",
            "Schedules": "",
        }
    parts = [f"level {level.title}  (standard {version})", ""]
    parts += textwrap.wrap(level.summary, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    parts.append("")
    for name, text in rows.items():
        if text:
            label = f"{name:<{_LABEL}}  "
            parts += textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
    if chosen:
        parts += ["", *_listed_by_chapter(level, chosen)]
    return "\n".join(parts)


def _listed_by_chapter(level: CertificationLevel, chosen: Sequence[Requirement]) -> Iterator[str]:
    """Every requirement of a level with its title, and a link to what it rests on."""
    core, ids = core_requirements(level), {row.id for row in chosen}
    rows = {
        row.id: [
            f"{row.id}{' *' if row.id in core else ''}",
            row.title,
            row.links[0] if row.links else "the contract",
        ]
        for row in chosen
    }
    lines = dict(zip(rows, aligned(list(rows.values())), strict=True))
    for chapter in all_chapters():
        here = [row.id for row in chapter.requirements if row.id in ids]
        if here:
            yield f"{chapter.id}  {chapter.title}"
            yield from (f"  {lines[one]}" for one in here)
    yield ""
    yield f"'pipeconform show {chosen[0].id}' prints a requirement in full; a link leads to what it rests on"


def describe_profile(profile: Profile) -> str:
    """A profile in full: how many cases it draws, and how long it shrinks failures."""
    return (
        f"profile {profile.name}\n\n"
        f"  {profile.summary}\n\n"
        f"Cases       {profile.corpus} drawn per subject and schedule ({profile.costly} where they cost much), "
        f"{profile.search} more searched per requirement and schedule\n"
        f"            of wrappers {profile.wrapper_search} searched beyond those that are listed\n"
        f"Shrinking   up to {profile.shrink_cost} executions per violation (fewer of errors, crashes and hangs), "
        f"{profile.cell_cost} per requirement under its first schedule, {profile.later_cost} under each other"
        + (f"\nLeft out    {', '.join(profile.leaves_out)}, unless asked for" if profile.leaves_out else "")
    )


def _number(level: CertificationLevel) -> str:
    return "not available" if missing(level) else f"{len(mandatory(level))} requirements"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Every row as one line, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
