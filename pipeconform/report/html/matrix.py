"""The matrix of requirements × schedules, for one result or several, with links to violations.

Every environment variant has its own columns; those of the default settings come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeconform.report.change import Changes
from pipeconform.report.html.comparison import changes_since_first, compared_with_first
from pipeconform.report.html.source import Source
from pipeconform.report.html.status import StatusView, cell_view, telling
from pipeconform.report.overview import DEFAULT, in_order
from pipeconform.report.result import Cell
from pipeconform.showing import shown
from pipeconform.spec import Requirement
from pipeconform.spec.wrappers import all_chapters

__all__ = ["Box", "ChapterView", "Entry", "Line", "Matrix", "RowView", "VariantView", "matrix"]

_CALM = frozenset({"passed", "not_claimed", "skipped"})
_LARGE = 500  # rows that a browser lays out without a noticeable pause

Key = tuple[str, str, str]
"""Requirement, schedule and variant."""
Column = tuple[str, str]
"""Schedule and variant."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One result's verdict in one cell."""

    label: str
    status: StatusView
    href: str
    """The link to the violation from which it has its status, if there is one."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """One cell of the matrix: an entry per result, or none if a variant does not judge the requirement."""

    entries: tuple[Entry, ...]
    differs: bool
    """Whether its verdict changed since the first result."""
    begins: bool
    """Whether it is in the first column of a variant other than the first."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table of counts."""

    source: str
    schedule: str
    variant: str
    status: StatusView
    href: str
    judgements: int
    executions: int
    distinct_cases: int
    worst_ratio: str
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
    """None if this version of the standard does not have it."""
    boxes: tuple[Box, ...]
    letters: str
    """The letters of each column's statuses, for the filters: ``p f pf``."""
    search: str
    lines: tuple[Line, ...]

    @property
    def claimed(self) -> bool:
        """Whether any result claims it under any schedule under which it would be judged."""
        found = {entry.status.key for box in self.boxes for entry in box.entries}
        return not ("not_claimed" in found <= {"not_claimed", "skipped", "not_run"})

    @property
    def schedules(self) -> tuple[str, ...]:
        """The schedules under which any result has it."""
        return tuple(dict.fromkeys(line.schedule for line in self.lines))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it has no verdict, each reason once."""
        return tuple(dict.fromkeys(line.reason for line in self.lines if line.reason))


@dataclass(frozen=True, kw_only=True)
class ChapterView:
    """The requirements of one chapter."""

    identifier: str
    title: str
    rows: tuple[RowView, ...]

    @property
    def calm(self) -> bool:
        """Whether there is nothing to look into: all is met, not claimed or not meant to be judged."""
        boxes = [box for row in self.rows for box in row.boxes]
        found = {entry.status.key for box in boxes for entry in box.entries}
        return found <= _CALM and not any(box.differs for box in boxes)


@dataclass(frozen=True, kw_only=True)
class VariantView:
    """The columns of one environment variant."""

    name: str
    schedules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All requirements, all schedules, all variants."""

    variants: tuple[VariantView, ...]
    """The default settings first."""
    every_chapter: tuple[ChapterView, ...]

    @property
    def chapters(self) -> tuple[ChapterView, ...]:
        """The chapters, with only the rows that a result claims."""
        kept = (_kept(chapter, claimed=True) for chapter in self.every_chapter)
        return tuple(chapter for chapter in kept if chapter.rows)

    @property
    def unclaimed(self) -> tuple[RowView, ...]:
        """The rows that no result claims."""
        return tuple(row for row in self.rows if not row.claimed)

    @property
    def rows(self) -> tuple[RowView, ...]:
        """All rows."""
        return tuple(row for chapter in self.every_chapter for row in chapter.rows)

    @property
    def num_columns(self) -> int:
        """The number of schedules of all variants together."""
        return sum(len(variant.schedules) for variant in self.variants)

    @property
    def large(self) -> bool:
        """Whether a browser should lay out only visible rows, in columns of fixed width."""
        return len(self.rows) > _LARGE


def _kept(chapter: ChapterView, *, claimed: bool) -> ChapterView:
    return replace(chapter, rows=tuple(row for row in chapter.rows if row.claimed is claimed))


def matrix(sources: Sequence[Source], *, known: Mapping[str, Requirement]) -> Matrix:
    """The matrix of results, with requirements in the order of the standard and unknown ones last."""
    cells = [
        {(cell.requirement, cell.schedule, cell.variant): cell for cell in source.result.cells}
        for source in sources
    ]
    keys = [key for one in cells for key in one]
    variants = tuple(
        VariantView(name=name, schedules=tuple(dict.fromkeys(s for _, s, v in keys if v == name)))
        for name in in_order([variant for _, _, variant in keys])
    )
    order = {identifier: at for at, identifier in enumerate(known)}
    identifiers = sorted(
        dict.fromkeys(identifier for identifier, _, _ in keys),
        key=lambda identifier: order.get(identifier, len(order)),
    )
    titles = {chapter.id: chapter.title for chapter in all_chapters()}
    rows: dict[str, list[RowView]] = {}
    compared = compared_with_first(sources)
    for identifier in identifiers:
        row = _row(identifier, sources, cells, variants, compared, requirement=known.get(identifier))
        rows.setdefault(identifier.partition("-")[0], []).append(row)
    found = (
        ChapterView(identifier=chapter, title=titles.get(chapter, ""), rows=tuple(several))
        for chapter, several in rows.items()
    )
    return Matrix(variants=variants, every_chapter=tuple(found))


def _row(
    identifier: str,
    sources: Sequence[Source],
    cells: Sequence[Mapping[Key, Cell]],
    variants: Sequence[VariantView],
    compared: Sequence[Changes],
    *,
    requirement: Requirement | None,
) -> RowView:
    columns = [(schedule, variant.name) for variant in variants for schedule in variant.schedules]
    first = {(variant.schedules[0], variant.name) for variant in variants[1:]}
    judged = {variant for one in cells for row, _, variant in one if row == identifier} | {DEFAULT}
    boxes = tuple(
        _box(sources, [one.get((identifier, *column)) for one in cells], compared, begins=column in first)
        if column[1] in judged
        else Box(entries=(), differs=False, begins=column in first)
        for column in columns
    )
    signatures = {
        violation.signature
        for one in cells
        for column in columns
        if (cell := one.get((identifier, *column))) is not None
        for violation in cell.violations
    }
    title = requirement.title if requirement else "not in this version's standard"
    return RowView(
        identifier=identifier,
        anchor=f"r-{identifier}",
        title=title,
        level=requirement.level.value if requirement else "",
        requirement=requirement,
        boxes=boxes,
        letters=" ".join("".join(sorted({entry.status.letter for entry in box.entries})) for box in boxes),
        search=shown(" ".join([identifier, title, *sorted(signatures)])).lower(),
        lines=tuple(_lines(identifier, sources, cells, columns)),
    )


def _box(
    sources: Sequence[Source], cells: Sequence[Cell | None], compared: Sequence[Changes], *, begins: bool
) -> Box:
    entries = tuple(
        Entry(
            label=source.label,
            status=cell_view(cell),
            href=_href(source, cell),
        )
        for source, cell in zip(sources, cells, strict=True)
    )
    return Box(entries=entries, differs=any(changes_since_first(cells, compared)), begins=begins)


def _href(source: Source, cell: Cell | None) -> str:
    found = None if cell is None else telling(cell)
    return "" if found is None else f"#{source.anchors[found.id]}"


def _lines(
    identifier: str,
    sources: Sequence[Source],
    cells: Sequence[Mapping[Key, Cell]],
    columns: Sequence[Column],
) -> Iterator[Line]:
    for schedule, variant in columns:
        for source, one in zip(sources, cells, strict=True):
            cell = one.get((identifier, schedule, variant))
            if cell is not None:
                yield Line(
                    source=source.label,
                    schedule=schedule,
                    variant=variant,
                    status=cell_view(cell),
                    href=_href(source, cell),
                    judgements=cell.judgements,
                    executions=cell.executions,
                    distinct_cases=cell.distinct_cases,
                    worst_ratio="" if cell.worst_ratio is None else f"{cell.worst_ratio:.2g}",
                    sizes=_sizes(cell.counts),
                    seconds=cell.seconds,
                    reason=shown(cell.reason),
                )


def _sizes(counts: Mapping[str, int]) -> str:
    """Judgements per p and v: ``p=1 v=2: 3, p=2 v=2: 1``."""
    return ", ".join(f"{size.replace(',', ' ')}: {number}" for size, number in sorted(counts.items()))
