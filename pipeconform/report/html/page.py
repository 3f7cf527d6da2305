"""The page for one result or several: a single file that loads nothing from the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeconform.report.causes import Known, causes_of
from pipeconform.report.html.comparison import differences, warnings
from pipeconform.report.html.matrix import Matrix, matrix
from pipeconform.report.html.news import identities, news
from pipeconform.report.html.source import Source, named_sources
from pipeconform.report.html.status import EXPECTED, NOT_RUN, StatusView, status_view
from pipeconform.report.html.templating import render
from pipeconform.report.html.view import result_view
from pipeconform.report.result import SEVERITY, Result
from pipeconform.spec.wrappers import all_requirements

__all__ = ["render_page"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of a filter."""

    value: str
    words: str


def render_page(
    results: Sequence[tuple[Result, Path]], *, known_causes: Sequence[Known] | None = None
) -> str:
    """The page as HTML; each result comes with the file it was read from, which replay lines name.

    `known_causes` lists findings, as in `causes_of`.

    Raises:
        ValueError: there is no result.
    """
    if not results:
        raise ValueError("a page needs a result")
    known = {row.id: row for row in all_requirements()}
    sources = named_sources(results)
    grid = matrix(sources, known=known)
    causes = [causes_of(source.result, known=known_causes) for source in sources]
    several = len(sources) > 1
    return render(
        "page.html",
        script="page.js",
        title=f"{_title(sources)}: {_subject(sources)}",
        heading=_title(sources),
        subject=_subject(sources),
        views=[
            result_view(source, causes=found, known=known)
            for source, found in zip(sources, causes, strict=True)
        ],
        grid=grid,
        news=news(sources, known_causes=known_causes) if several else (),
        identities=identities(sources) if several else (),
        differences=differences(sources, known=known) if several else (),
        warnings=warnings(sources) if several else (),
        statuses=list(_statuses(grid)),
        schedules=_choices(cell.schedule for source in sources for cell in source.result.cells),
        chapters=_chapters(grid),
        levels=_choices(row.level for row in grid.rows if row.level),
    )


def _subject(sources: Sequence[Source]) -> str:
    kinds = dict.fromkeys(source.result.implementation.kind for source in sources)
    return f"{' and '.join(kinds)} conformance"


def _title(sources: Sequence[Source]) -> str:
    """The implementations; for two releases of one, ``toy 1.0 → 2.0``."""
    found = [source.result.implementation for source in sources]
    names, versions = dict.fromkeys(one.name for one in found), dict.fromkeys(one.version for one in found)
    if len(names) == 1:
        return f"{found[0].name} {' → '.join(versions)}"
    return " and ".join(f"{one.name} {one.version}" for one in found)


def _statuses(grid: Matrix) -> Iterator[tuple[StatusView, int]]:
    """The statuses that occur, worst first, each with its number of cells."""
    counts = Counter(entry.status for row in grid.rows for box in row.boxes for entry in box.entries)
    for view in (*map(status_view, SEVERITY), EXPECTED, NOT_RUN):
        if counts[view]:
            yield view, counts[view]


def _choices(values: Iterable[str]) -> tuple[Choice, ...]:
    return tuple(Choice(value=value, words=value) for value in dict.fromkeys(values))


def _chapters(grid: Matrix) -> tuple[Choice, ...]:
    return tuple(
        Choice(value=chapter.identifier, words=f"{chapter.identifier} {chapter.title}".strip())
        for chapter in grid.every_chapter
    )
