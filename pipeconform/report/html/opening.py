"""The first screen of a page: the answer in a sentence, the levels, the classes of harm and what is not claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeconform.plural import plural
from pipeconform.report.causes import Cause
from pipeconform.report.html.chapters import ORDER, WORDS, ChapterRow, chapter_rows
from pipeconform.report.result import Result
from pipeconform.report.standing import LevelStanding, Standing, level_standings, standings
from pipeconform.report.summary import verdict
from pipeconform.report.words import claimed_elsewhere, returned_unclaimed
from pipeconform.spec import Level
from pipeconform.spec.wrappers import all_requirements

__all__ = ["SYMBOLS", "LevelView", "Opening", "Tone", "opening_of"]

Tone = Literal["good", "open", "bad"]
"""good: met, as far as it was judged; open: nothing is wrong so far, but not all was judged; bad: wrong."""

SYMBOLS: Mapping[Tone, str] = {"good": "✓", "open": "◐", "bad": "✗"}

_TONES: Mapping[str, Tone] = {"bold green": "good", "bold yellow": "open", "bold red": "bad"}
"""By the style of the verdict in the terminal, so that page and terminal never disagree."""

_LEVEL_WORDS: Mapping[Standing, str] = {
    "met": "all {total} met",
    "violated": "{number} violated",
    "blocked": "{number} blocked",
    "unjudged": "{number} not judged",
    "not_claimed": "{number} not claimed",
}
_LEVEL_TONES: Mapping[Standing, Tone] = {"met": "good", "violated": "bad", "blocked": "bad"}


@dataclass(frozen=True, kw_only=True)
class LevelView:
    """One certification level."""

    name: str
    title: str
    tone: Tone
    symbol: str
    words: str
    """``3 violated``."""
    in_the_way: tuple[str, ...]
    """The requirements behind `words`, of which there may be many."""
    total: int
    """How many requirements decide about it."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a reader learns of one result in five seconds."""

    tone: Tone
    symbol: str
    headline: str
    remarks: tuple[str, ...]
    """What limits the headline: a run that was stopped, cells without a verdict, what is blocked."""
    conformant: str
    """``Conformant for Forward and Training``; ``Conformant for no level``."""
    levels: tuple[LevelView, ...]
    chapters: tuple[ChapterRow, ...]
    tally: tuple[tuple[Standing, str, int], ...]
    """The standings that any requirement has, in words, and of how many."""
    unclaimed: str
    """``23 requirements are not claimed``; empty if all are."""
    claims: tuple[str, ...]
    """What else the reader should know about the claims."""


def opening_of(result: Result, *, causes: Sequence[Cause]) -> Opening:
    """The first screen of a result with these causes."""
    tone = _TONES[str(verdict(result, causes=causes).style)]
    found = standings(result, causes=causes)
    levels = level_standings(result, found)
    counts = Counter(found.values())
    number = counts["not_claimed"]
    return Opening(
        tone=tone,
        symbol=SYMBOLS[tone],
        headline=_headline(result, causes),
        remarks=tuple(_remarks(result, causes)),
        conformant=_conformant(levels),
        levels=tuple(map(_level, levels)),
        chapters=chapter_rows(found),
        tally=tuple((one, WORDS[one], counts[one]) for one in ORDER if counts[one]),
        unclaimed=f"{plural(number, 'requirement')} {'is' if number == 1 else 'are'} not claimed"
        if number
        else "",
        claims=(
            *returned_unclaimed(result.cells),
            *(f"not claimed here: {one}" for one in claimed_elsewhere(result.implementation.capabilities)),
        ),
    )


def _headline(result: Result, causes: Sequence[Cause]) -> str:
    """The verdict without the list of requirements, which the page shows with their titles."""
    accusing = [cause for cause in causes if not cause.expected]
    wrong = {name for cause in accusing for name in cause.requirements}
    judged = {cell.requirement for cell in result.cells if cell.is_judged} | wrong
    begin = "" if result.run.complete else "So far "
    if wrong:
        words = f"violates {len(wrong)} of {plural(len(judged), 'judged requirement')}"
        words += f", for {plural(len(accusing), 'cause')}" if max(len(wrong), len(accusing)) > 1 else ""
    elif not judged:
        words = "nothing was judged"
    elif known := {cell.requirement for cell in result.cells if cell.is_expected}:
        words = f"violates {plural(len(known), 'requirement')}, only as expected"
    else:
        words = f"meets {'the one' if len(judged) == 1 else f'all {len(judged)}'} judged requirement"
        words += "" if len(judged) == 1 else "s"
    entries = result.expectations
    if entries is not None and entries.problems:
        words += f", {'and' if wrong else 'but'} {entries.file} has {plural(len(entries.problems), 'thing')} to change"
    return begin + words if begin else words[0].upper() + words[1:]


def _remarks(result: Result, causes: Sequence[Cause]) -> Iterator[str]:
    if not result.run.complete:
        yield "the run was stopped early: cells are missing"
    errors = [cell for cell in result.cells if cell.is_broken]
    if errors:
        yield f"{plural(len(errors), 'cell')} could not be judged"
    accusing = [cause for cause in causes if not cause.expected]
    wrong = {name for cause in accusing for name in cause.requirements}
    should = [row for row in all_requirements() if row.id in wrong and row.level is not Level.MUST]
    if should:
        number = "" if len(wrong) == 1 else f"{len(should)} of them "
        yield f"{number}only SHOULD, which decide{'s' if len(should) == 1 else ''} no level"
    blocked = {name for cause in accusing for name in cause.blocked_requirements} - wrong
    if blocked:
        number = plural(len(blocked), "more requirement")
        yield f"{number} {'is' if len(blocked) == 1 else 'are'} blocked by these"
    judged = {cell.requirement for cell in result.cells if cell.is_judged}
    void = {cell.requirement for cell in result.cells if cell.status == "nothing_compared"} - judged
    if void:
        yield f"nothing was compared for {_listed(sorted(void))}"
    if result.run.selection:
        yield "only a selection was judged: " + ", ".join(result.run.selection.split(","))


def _conformant(levels: Sequence[LevelStanding]) -> str:
    met = [level.title for level in levels if level.state == "met"]
    if not met:
        return (
            "Conformant for no level"
            if any(level.state == "violated" for level in levels)
            else "No level yet"
        )
    return f"Conformant for {_listed(met)}"


def _level(level: LevelStanding) -> LevelView:
    tone = _LEVEL_TONES.get(level.state, "open")
    number = len(level.in_the_way)
    words = _LEVEL_WORDS[level.state].format(total=level.total, number=number)
    return LevelView(
        name=level.name,
        title=level.title,
        tone=tone,
        symbol="–" if level.state == "not_claimed" else SYMBOLS[tone],
        words="not judged in full" if level.state == "unjudged" and not number else words,
        in_the_way=level.in_the_way,
        total=level.total,
    )


def _listed(names: Iterable[str]) -> str:
    """``A, B and C``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
