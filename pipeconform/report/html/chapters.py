"""The chapters at a glance: a small square per requirement, in a row per chapter, with the numbers beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from pipeconform import svg
from pipeconform.report.html.figure import figure
from pipeconform.report.standing import STANDINGS, ChapterStanding, Standing, chapter_standings
from pipeconform.spec.wrappers import all_requirements

__all__ = ["ORDER", "WORDS", "ChapterRow", "chapter_rows"]

WORDS: Mapping[Standing, str] = {
    "met": "met",
    "violated": "violated",
    "blocked": "blocked",
    "unjudged": "not judged",
    "not_claimed": "not claimed",
}
ORDER: tuple[Standing, ...] = ("violated", "blocked", "met", "unjudged", "not_claimed")
"""What needs attention comes first."""

assert set(ORDER) == set(STANDINGS)

_STEP, _SIZE, _INSET = 11, 9, 2.5
_PER_LINE = 20  # as many as a phone shows in one line


@dataclass(frozen=True, kw_only=True)
class ChapterRow:
    """One chapter."""

    identifier: str
    title: str
    picture: Markup
    met: int
    total: int


def chapter_rows(found: Mapping[str, Standing]) -> tuple[ChapterRow, ...]:
    """A row for every chapter that has any of these requirements, given their standings."""
    titles = {row.id: row.title for row in all_requirements()}
    return tuple(
        ChapterRow(
            identifier=chapter.identifier,
            title=chapter.title,
            picture=_picture(chapter, titles),
            met=chapter.count("met"),
            total=chapter.total,
        )
        for chapter in chapter_standings(found)
    )


def _picture(chapter: ChapterStanding, titles: Mapping[str, str]) -> Markup:
    lines = -(-chapter.total // _PER_LINE)
    words = ", ".join(f"{n} {WORDS[one]}" for one in ORDER if (n := chapter.count(one)))
    return figure(
        _squares(chapter, titles),
        width=min(chapter.total, _PER_LINE) * _STEP,
        height=lines * _STEP,
        title=f"{chapter.identifier}: {words}",
        cls="squares",
    )


def _squares(chapter: ChapterStanding, titles: Mapping[str, str]) -> Iterator[str]:
    """Each kind has a shape of its own, so that the picture reads without colours."""
    names = [(standing, name) for standing in ORDER for name in chapter.requirements[standing]]
    for at, (standing, name) in enumerate(names):
        x, y = at % _PER_LINE * _STEP + 1, at // _PER_LINE * _STEP + 1
        title = f"{name} {titles.get(name, '')}: {WORDS[standing]}"
        inset = _INSET if standing == "not_claimed" else 0.5 if standing == "unjudged" else 0
        size = _SIZE - 2 * inset
        yield svg.rect(x + inset, y + inset, size, size, cls=f"square {standing}", title=title)
        if standing == "violated":
            yield svg.line(((x + 2.5, y + 2.5), (x + 6.5, y + 6.5)), cls="cross")
            yield svg.line(((x + 6.5, y + 2.5), (x + 2.5, y + 6.5)), cls="cross")
        elif standing == "blocked":
            yield svg.line(((x + 2, y + 7), (x + 7, y + 2)), cls="cross")
