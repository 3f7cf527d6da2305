"""The table of a run's verdicts: requirements by schedules, and a column for every environment variant.

The default settings come first, with a column per schedule. A variant has one column for all its schedules, with the
worst of its verdicts and how many of those judged share it, because a terminal has no room for every schedule twice.
If not all columns fit side by side, a second table shows the variants next to the default settings, which have one
column there, too. The page shows every schedule of every variant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pipeconform.report.result import SEVERITY, Cell
from pipeconform.report.words import COLOURS, EXPECTED, WORDS
from pipeconform.spec.wrappers import all_requirements

__all__ = ["DEFAULT", "in_order", "overview"]

DEFAULT = "default"
_GAP = 2  # columns between columns
_WORD = max(map(len, WORDS.values()))
_PIECE = 6  # columns that a line of a schedule's name may always have
_LEAST_TITLE = 16  # columns below which a title says too little


@dataclass(frozen=True)
class _Column:
    """One column: a heading, and a coloured word for each requirement."""

    heading: str
    words: Mapping[str, Text]

    @property
    def width(self) -> int:
        """The column's width in characters."""
        return max(
            _WORD, *map(len, _pieces(self.heading)), *(len(word.plain) for word in self.words.values())
        )


def in_order(variants: Sequence[str]) -> list[str]:
    """Variants once each, the default settings first."""
    return sorted(dict.fromkeys(variants), key=lambda variant: variant != DEFAULT)


def overview(cells: Sequence[Cell], *, width: int = 80) -> Iterator[RenderableType]:
    """The table, in as many parts as `width` requires, and an explanation of the variants' columns."""
    variants = in_order([cell.variant for cell in cells])
    schedules = list(_schedules(cells))
    others = [_variant(cells, variant) for variant in variants if variant != DEFAULT]
    room = width - max((len(cell.requirement) for cell in cells), default=0) - _GAP
    parts = list(_fitting([*schedules, *others], room))
    if others and len(parts) > 1:
        beside = [_variant(cells, DEFAULT), *others] if schedules else others
        judged = set().union(*(column.words for column in others))
        beside = [
            _Column(one.heading, {row: one.words[row] for row in judged & one.words.keys()}) for one in beside
        ]
        parts = [*(_fitting(schedules, room) if schedules else ()), *_fitting(beside, room)]
    for part in parts:
        yield _table(cells, part, title=room - sum(column.width + _GAP for column in part))
    for column in others:
        text = f"{column.heading}: with the settings of this name, the worst verdict under any schedule"
        counts = any("/" in word.plain for word in column.words.values())
        yield Text(text + (", and under how many of those judged" if counts else ""), style="dim")


def _schedules(cells: Sequence[Cell]) -> Iterator[_Column]:
    """A column per schedule, for the default settings."""
    found = [cell for cell in cells if cell.variant == DEFAULT]
    for schedule in dict.fromkeys(cell.schedule for cell in found):
        yield _Column(
            schedule, {cell.requirement: _word(cell) for cell in found if cell.schedule == schedule}
        )


def _variant(cells: Sequence[Cell], variant: str) -> _Column:
    """One column for all schedules of a variant."""
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.variant == variant:
            rows.setdefault(cell.requirement, []).append(cell)
    return _Column(variant, {row: _worst(found) for row, found in rows.items()})


def _worst(cells: Sequence[Cell]) -> Text:
    """The worst verdict of several schedules, and how many have it if they differ."""
    judged = [cell for cell in cells if cell.status not in ("skipped", "not_claimed")] or list(cells)
    known = SEVERITY.index("passed") - 0.5  # an expected violation is worse only than a met requirement
    ranked = sorted(judged, key=lambda cell: known if cell.is_expected else SEVERITY.index(cell.status))
    words = [_word(cell) for cell in ranked]
    same = sum(word.plain == words[0].plain for word in words)
    if same < len(words):
        words[0].append(f" {same}/{len(words)}")
    return words[0]


def _table(cells: Sequence[Cell], columns: Sequence[_Column], *, title: int) -> Table:
    """A table with `title` characters for the requirements' titles, which are left out if that is too few."""
    known = {row.id: row.title for row in all_requirements()}
    titled = title >= _LEAST_TITLE
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    if titled:
        table.add_column("", no_wrap=True, overflow="ellipsis", max_width=title)
    for column in columns:
        table.add_column("\n".join(_pieces(column.heading)), no_wrap=True, vertical="bottom")
    for identifier in dict.fromkeys(cell.requirement for cell in cells):
        words = [column.words.get(identifier) for column in columns]
        if any(words):
            first = [identifier, known.get(identifier, "")] if titled else [identifier]
            table.add_row(*map(Text, first), *(word or Text("") for word in words))
    return table


def _fitting(columns: Sequence[_Column], room: int) -> Iterator[list[_Column]]:
    """The columns in parts that fit into `room`, because a table that is cut off would hide verdicts."""
    part: list[_Column] = []
    used = 0
    for column in columns:
        wide = column.width + _GAP
        if part and used + wide - _GAP > room:
            yield part
            part, used = [], 0
        part.append(column)
        used += wide
    yield part


def _pieces(name: str) -> list[str]:
    """A long CamelCase name, broken so that its column is narrow: ``Interleaved``, ``1F1B``."""
    words = re.findall(r"[A-Z]+(?![a-z])[^A-Za-z\d]*|[A-Z]?[a-z]+[^A-Za-z\d]*|\d[\dA-Z]*[^A-Za-z\d]*", name)
    if "".join(words) != name:
        return [name]
    widest = max((_PIECE, *map(len, words)))
    lines = [""]
    for word in words:
        if len(lines[-1] + word) > widest:
            lines.append("")
        lines[-1] += word
    return lines


def _word(cell: Cell) -> Text:
    if cell.is_expected:
        return Text(EXPECTED, style="dim")
    return Text(WORDS[cell.status], style=COLOURS[cell.status])
