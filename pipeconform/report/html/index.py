"""The index of a folder of results: a row for each, filtered by implementation, release, and chapter or level."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pipeconform.report.causes import Cause, Known, causes_of
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.collection import Collected, Collection, page_of
from pipeconform.report.history import version_order
from pipeconform.report.html.opening import Opening, opening_of
from pipeconform.report.html.templating import render
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result
from pipeconform.report.standing import (
    ChapterStanding,
    LevelStanding,
    Standing,
    chapter_standings,
    level_standings,
    standings,
)
from pipeconform.report.words import moment
from pipeconform.spec import certification_levels
from pipeconform.spec.wrappers import all_chapters

__all__ = ["history_name", "render_index"]

_SYMBOLS: Mapping[Standing, str] = {
    "met": "✓",
    "violated": "✗",
    "blocked": "⊘",
    "unjudged": "◐",
    "not_claimed": "–",
}
_WORDS: Mapping[Standing, str] = {
    "met": "met",
    "violated": "violated",
    "blocked": "blocked",
    "unjudged": "not judged in full",
    "not_claimed": "not claimed",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A chapter or a level: one column."""

    key: str
    """``chapter-FWD``, ``level-forward``."""
    heading: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Box:
    """How one result stands to one part."""

    standing: Standing
    symbol: str
    text: str
    """``21/25``."""
    words: str
    """For those who do not see the symbol."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result."""

    implementation: str
    release: str
    href: str
    run: tuple[str, ...]
    """When and how it was run, and by which adapter if that is not one of pipeconform's."""
    place: str
    """The folder of its file in the collection, or the file itself if it has a name of its own."""
    opening: Opening
    standing: Standing
    """Of everything that was judged."""
    harms: tuple[tuple[str, int], ...]
    boxes: Mapping[str, Box]
    """By the key of the part; a part that the result does not have is missing."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The results of one implementation, the newest release first."""

    name: str
    history: str
    """The link to the page of its history; empty if there is only one result."""
    rows: tuple[Row, ...]


def render_index(collection: Collection, *, name: str, known_causes: Sequence[Known] | None = None) -> str:
    """The index as one HTML page that links to the page of each result; `name` is what the folder is called."""
    rows = [_row(one, known_causes) for one in _newest_first(collection.results)]
    groups = tuple(
        Group(
            name=implementation,
            history=quote(history_name(implementation)) if len(several) > 1 else "",
            rows=tuple(several),
        )
        for implementation in sorted({row.implementation for row, _ in rows})
        if (several := [row for row, _ in rows if row.implementation == implementation])
    )
    parts = {part.key: part for _, found in rows for part in found}
    chapters = {f"chapter-{chapter.id}": at for at, chapter in enumerate(all_chapters())}
    levels = {f"level-{level.name}": at for at, level in enumerate(certification_levels())}
    days = sorted(one.result.created[:10] for one in collection.results)
    return render(
        "index.html",
        script="index.js",
        title=f"{name}: conformance results",
        name=name,
        groups=groups,
        chapters=_ordered([part for part in parts.values() if part.key.startswith("chapter-")], chapters),
        levels=_ordered([part for part in parts.values() if part.key in levels], levels),
        releases=list(dict.fromkeys(row.release for row, _ in rows)),
        words=_WORDS,
        span=" to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
        number=len(rows),
        unreadable=collection.unreadable,
    )


def _ordered(parts: Sequence[Part], order: Mapping[str, int]) -> list[Part]:
    """The parts in the order of the standard; those that it lacks come last."""
    return sorted(parts, key=lambda part: order.get(part.key, len(order)))


def history_name(implementation: str) -> str:
    """The file with the history of an implementation."""
    return f"history-{re.sub(r'[^A-Za-z0-9_.-]+', '-', implementation)}.html"


def _newest_first(results: Sequence[Collected]) -> list[Collected]:
    return sorted(results, key=lambda one: (version_order(one.result), one.result.created), reverse=True)


def _row(one: Collected, known: Sequence[Known] | None) -> tuple[Row, list[Part]]:
    """The row of a result, and the parts that it has."""
    result = one.result
    causes = causes_of(result, known=known)
    found = standings(result, causes=causes)
    opening = opening_of(result, causes=causes)
    boxes: dict[str, Box] = {}
    parts = []
    for chapter in chapter_standings(found):
        key = f"chapter-{chapter.identifier}"
        parts.append(Part(key=key, heading=chapter.identifier, title=chapter.title))
        boxes[key] = _chapter_box(chapter)
    for level in level_standings(result, found):
        key = f"level-{level.name}"
        parts.append(Part(key=key, heading=level.title, title=f"Level {level.title}"))
        boxes[key] = _level_box(level)
    row = Row(
        implementation=result.implementation.name,
        release=result.implementation.version,
        href=quote(page_of(one.path).as_posix()),
        run=tuple(_run(result)),
        place=_place(one.path),
        opening=opening,
        standing="violated" if opening.tone == "bad" else "met" if opening.tone == "good" else "unjudged",
        harms=_harms(causes),
        boxes=boxes,
    )
    return row, parts


def _run(result: Result) -> Iterator[str]:
    yield moment(result.created)
    yield result.run.profile
    yield result.environment.device
    if ":" in result.implementation.reference:  # a user's; pipeconform's own adapters have plain names
        yield result.implementation.reference


def _place(path: Path) -> str:
    return path.parent.as_posix() if path.name == RESULT_NAME else path.as_posix()


def _harms(causes: Sequence[Cause]) -> tuple[tuple[str, int], ...]:
    accusing = [cause.harm for cause in causes if not cause.expected]
    return tuple((HARM[harm], accusing.count(harm)) for harm in dict.fromkeys(accusing))


def _chapter_box(chapter: ChapterStanding) -> Box:
    order: tuple[Standing, ...] = ("violated", "blocked", "unjudged", "met")
    standing: Standing = next((one for one in order if chapter.count(one)), "not_claimed")
    text = "" if standing == "not_claimed" else f"{chapter.count('met')}/{chapter.total}"
    return Box(standing=standing, symbol=_SYMBOLS[standing], text=text, words=_WORDS[standing])


def _level_box(level: LevelStanding) -> Box:
    number = len(level.in_the_way)
    text = f"{level.total}/{level.total}" if level.state == "met" else f"{number} {_WORDS[level.state]}"
    if level.state == "unjudged":
        text = f"{number} not judged" if number else _WORDS["unjudged"]
    return Box(standing=level.state, symbol=_SYMBOLS[level.state], text=text, words="")
