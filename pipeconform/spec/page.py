"""The standard as a page of Markdown, made from the suites: ``python -m pipeconform.spec.page FILE``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeconform.spec import (
    STANDARD_VERSION,
    CertificationLevel,
    Chapter,
    Requirement,
    certification_levels,
    chapters,
    core_requirements,
    mandatory,
    missing,
    profiles,
    standard_versions,
)
from pipeconform.spec.catalogue import Promise
from pipeconform.spec.levels import needed_claims
from pipeconform.spec.wrappers import chapters_of, wrapper_chapter

__all__ = ["standard_page"]

_BATCHES = {"one": "m = 1", "fewer": "m < p", "equal": "m = p", "more": "m > p"}


def standard_page() -> str:
    """The whole standard: version, levels, profiles, every requirement, change log."""
    lines = [*_head(), *_levels(), *_profiles(), *_chapters(), *_changes()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _head() -> Iterator[str]:
    count = sum(len(chapter.requirements) for chapter in chapters())
    yield "<!-- Generated from suites/ and pipeconform/spec by 'make standard'; change it there. -->"
    yield ""
    yield "# The standard"
    yield ""
    yield (
        f"Version {STANDARD_VERSION}: {count} requirements in {len(chapters())} chapters, and a chapter about module "
        f"wrappers. MUST, SHOULD and MAY are used as in RFC 2119. *p* is the number of pipeline ranks, *v* the number "
        f"of stages per rank, *m* the number of microbatches. "
        f"The *reference* is the same model run without a pipeline over the same microbatches."
    )
    yield ""


def _levels() -> Iterator[str]:
    yield "## Levels"
    yield ""
    yield (
        "A level is granted by `pipeconform certify` if all its MUST requirements are met under every schedule "
        "that the implementation claims, in enough cases of every size. What is not claimed never counts as met. "
        "SHOULD requirements decide about no level; a run reports their violations."
    )
    yield ""
    for level in certification_levels():
        yield f"### {level.title}"
        yield ""
        yield level.summary
        yield ""
        yield from _demands(level)
        yield ""


def _demands(level: CertificationLevel) -> Iterator[str]:
    absent = missing(level)
    if absent:
        yield f"- **Not available in this version of the standard**: it has no {', '.join(absent)} yet."
    else:
        yield from _required(level)
    if needed_claims(level):
        yield f"- Must be claimed: {'; '.join(needed_claims(level).values())}."
    titles = {row.id: row for row in mandatory(level)} if not absent else {}
    core = (_heading_of(titles[one]) if one in titles else one for one in core_requirements(level))
    yield f"- Cannot be left unclaimed: {', '.join(core)}."
    yield f"- May be left unclaimed: at most {level.not_claimed:.0%} of the others."
    yield (
        f"- Cases: at least {level.draws} drawn per subject and schedule; at least {level.examples} distinct ones "
        f"judged per requirement and schedule."
    )
    sizes = ", ".join(_BATCHES[one] for one in level.microbatches)
    yield (
        f"- Sizes, where claimed: p = {_listed(level.ranks)}; v = {_listed(level.stages_per_rank)}; {sizes}. "
        f"At least one p ≥ 2."
    )
    yield f"- Schedules: at least {level.min_schedules}."


def _required(level: CertificationLevel) -> Iterator[str]:
    """The level's requirements by chapter, with links to where they stand on this page."""
    wanted = {row.id for row in mandatory(level)}
    below = [one for one in certification_levels() if one.name in level.includes]
    new = wanted - {row.id for one in below for row in mandatory(one)}
    levels = [f"[{one.title}](#{one.title.lower()})" for one in below]
    yield f"- {len(wanted)} requirements" + (
        f", those of {' and '.join(levels)} and these:" if below else ":"
    )
    for chapter in chapters_of(level.kind):
        here = [row for row in chapter.requirements if row.id in new]
        if here:
            yield f"    - {chapter.title}: {', '.join(map(_heading_of, here))}."


def _heading_of(row: Requirement) -> str:
    """A requirement's id and title as a link to its heading."""
    words = f"{row.id} {row.title}"
    anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower())
    return f"[{words}](#{anchor})"


def _profiles() -> Iterator[str]:
    yield "## Profiles"
    yield ""
    yield "| profile | cases per subject and schedule | costly ones | further cases searched | for wrappers | use |"
    yield "|---|---|---|---|---|---|"
    for one in profiles():
        sizes = f"{one.corpus} | {one.costly} | {one.search} | {one.wrapper_search}"
        yield f"| {one.name} | {sizes} | {one.summary} |"
    yield ""


def _chapters() -> Iterator[str]:
    for chapter in chapters():
        yield from _chapter(chapter)
    yield from _chapter(
        wrapper_chapter(),
        about="This chapter is about module wrappers, not pipelines: `pipeconform run --impl torch-ddp`.",
    )


def _chapter(chapter: Chapter, *, about: str = "") -> Iterator[str]:
    yield f"## {chapter.id}: {chapter.title}"
    yield ""
    if about:
        yield about
        yield ""
    for row in chapter.requirements:
        yield from _requirement(row)


def _requirement(row: Requirement) -> Iterator[str]:
    yield f"### {row.id} {row.title}"
    yield ""
    yield f"**{row.level.value}.** {_plain(row.statement)}"
    if row.tolerates_errors:
        yield "An error on every rank that takes part also meets it."
    yield ""
    yield f"*Why:* {_plain(row.rationale)}"
    yield ""
    yield f"*Source:* {'; '.join(map(_linked, row.promise))}"
    yield ""


def _linked(promise: Promise) -> str:
    return f"[{_plain(promise.text)}]({promise.link})" if promise.link else _plain(promise.text)


def _changes() -> Iterator[str]:
    yield "## Changes"
    yield ""
    for version in standard_versions():
        yield f"### {version.version} ({version.date})"
        yield ""
        yield from (f"- {_plain(change)}" for change in version.changes)
        yield ""


def _plain(text: str) -> str:
    """Escape angle brackets, asterisks and underscores for Markdown."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(standard_page(), "utf-8")
