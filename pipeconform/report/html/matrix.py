"""Requirements × schedules: what every cell of one result or several says, and where it leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeconform.report.html.comparison import changes_since_first
from pipeconform.report.html.message import visible
from pipeconform.report.html.source import Source
from pipeconform.report.html.status import StatusView, cell_view
from pipeconform.report.result import Cell
from pipeconform.spec import Requirement, chapters

__all__ = ["Box", "ChapterView", "Entry", "Line", "Matrix", "RowView", "matrices"]

_LARGE = 500  # rows that a browser lays out at once without a pause

Key = tuple[str, str]
"""Requirement and schedule."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one result says in one cell."""

    label: str
    status: StatusView
    href: str
    """Where its first violation is told, if there is one."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """One cell of the matrix: an entry per result."""

    entries: tuple[Entry, ...]
    differs: bool
    """Whether its verdict changed since the first result."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One cell in full, for the table of counts."""

    source: str
    schedule: str
    status: StatusView
    href: str
    judgements: int
    executions: int
    distinct_cases: int
    sizes: str
    seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class RowView:
    """One requirement."""

    identifier: str
    anchor: str
    title: str
    level: str
    requirement: Requirement | None
    """None for one that this version's standard does not have."""
    boxes: tuple[Box, ...]
    letters: str
    """The statuses per schedule for the filters, letters in order: ``p f pf``."""
    search: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class ChapterView:
    """The requirements of one chapter."""

    identifier: str
    title: str
    rows: tuple[RowView, ...]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One environment variant."""

    variant: str
    schedules: tuple[str, ...]
    chapters: tuple[ChapterView, ...]

    @property
    def large(self) -> bool:
        """Whether a browser should lay out only the rows that are seen, in columns of fixed width."""
        return sum(len(chapter.rows) for chapter in self.chapters) > _LARGE


def matrices(sources: Sequence[Source], *, known: Mapping[str, Requirement]) -> tuple[Matrix, ...]:
    """One matrix per environment variant, requirements in the order of the standard, unknown ones last."""
    variants = dict.fromkeys(cell.variant for source in sources for cell in source.result.cells)
    return tuple(_matrix(variant, number, sources, known=known) for number, variant in enumerate(variants))


def _matrix(
    variant: str, number: int, sources: Sequence[Source], *, known: Mapping[str, Requirement]
) -> Matrix:
    cells = [
        {(cell.requirement, cell.schedule): cell for cell in source.result.cells if cell.variant == variant}
        for source in sources
    ]
    schedules = tuple(dict.fromkeys(schedule for one in cells for _, schedule in one))
    order = {identifier: at for at, identifier in enumerate(known)}
    identifiers = sorted(
        dict.fromkeys(identifier for one in cells for identifier, _ in one),
        key=lambda identifier: order.get(identifier, len(order)),
    )
    titles = {chapter.id: chapter.title for chapter in chapters()}
    rows: dict[str, list[RowView]] = {}
    for identifier in identifiers:
        row = _row(identifier, sources, cells, schedules, requirement=known.get(identifier), number=number)
        rows.setdefault(identifier.partition("-")[0], []).append(row)
    found = (
        ChapterView(identifier=chapter, title=titles.get(chapter, ""), rows=tuple(several))
        for chapter, several in rows.items()
    )
    return Matrix(variant=variant, schedules=schedules, chapters=tuple(found))


def _row(
    identifier: str,
    sources: Sequence[Source],
    cells: Sequence[Mapping[Key, Cell]],
    schedules: Sequence[str],
    *,
    requirement: Requirement | None,
    number: int,
) -> RowView:
    boxes = tuple(_box(sources, [one.get((identifier, schedule)) for one in cells]) for schedule in schedules)
    signatures = {
        violation.signature
        for one in cells
        for schedule in schedules
        if (cell := one.get((identifier, schedule))) is not None
        for violation in cell.violations
    }
    title = requirement.title if requirement else "not in this version's standard"
    return RowView(
        identifier=identifier,
        anchor=f"r{number or ''}-{identifier}",
        title=title,
        level=requirement.level.value if requirement else "",
        requirement=requirement,
        boxes=boxes,
        letters=" ".join("".join(sorted({entry.status.letter for entry in box.entries})) for box in boxes),
        search=visible(" ".join([identifier, title, *sorted(signatures)])).lower(),
        lines=tuple(_lines(identifier, sources, cells, schedules)),
    )


def _box(sources: Sequence[Source], cells: Sequence[Cell | None]) -> Box:
    entries = tuple(
        Entry(
            label=source.label,
            status=cell_view(cell),
            href=_href(source, cell),
        )
        for source, cell in zip(sources, cells, strict=True)
    )
    return Box(entries=entries, differs=any(changes_since_first(cells)))


def _href(source: Source, cell: Cell | None) -> str:
    return f"#{source.anchors[cell.violations[0].id]}" if cell is not None and cell.violations else ""


def _lines(
    identifier: str,
    sources: Sequence[Source],
    cells: Sequence[Mapping[Key, Cell]],
    schedules: Sequence[str],
) -> Iterator[Line]:
    for schedule in schedules:
        for source, one in zip(sources, cells, strict=True):
            cell = one.get((identifier, schedule))
            if cell is not None:
                yield Line(
                    source=source.label,
                    schedule=schedule,
                    status=cell_view(cell),
                    href=_href(source, cell),
                    judgements=cell.judgements,
                    executions=cell.executions,
                    distinct_cases=cell.distinct_cases,
                    sizes=_sizes(cell.counts),
                    seconds=cell.seconds,
                    reason=visible(cell.reason),
                )


def _sizes(counts: Mapping[str, int]) -> str:
    """Judgements per p and v: ``p=1 v=2: 3, p=2 v=2: 1``."""
    return ", ".join(f"{size.replace(',', ' ')}: {number}" for size, number in sorted(counts.items()))
