"""How the verdicts on one implementation changed over its releases: three results or thirty, not a pair."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeconform.report.result import SEVERITY, Cell, Result, Status

__all__ = ["Column", "History", "Order", "Row", "State", "history_of", "version_order"]

Order = Literal["version", "created"]
_GOOD: tuple[Status, ...] = ("passed",)
_UNJUDGED: tuple[Status, ...] = ("not_claimed", "skipped", "nothing_compared")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One result of the history."""

    label: str
    """Its version, with the time of the run if another result has the same version."""
    dated: bool
    """Whether the label has the time."""
    result: Result


@dataclass(frozen=True, kw_only=True)
class State:
    """One requirement in one result."""

    status: Status | None
    """The worst over all schedules, or passed; None if it was not judged."""
    wrong: int = 0
    """Under how many schedules it is not met."""
    judged: int = 0
    signatures: tuple[str, ...] = ()
    """Violations, the most serious first, each as ``GPipe: failed, loss order``."""

    @property
    def is_wrong(self) -> bool | None:
        """Whether it is not met; None if it was not judged."""
        return None if self.status is None else self.status not in _GOOD


@dataclass(frozen=True, kw_only=True)
class Row:
    """One requirement over all results."""

    requirement: str
    states: tuple[State, ...]
    changes: tuple[tuple[Literal["broken", "mended"], str], ...]
    """Each change, with the label of the first result that shows it; unjudged results in between are passed over."""

    @property
    def story(self) -> str:
        """``broken in 2.12, mended in 2.14``; ``always`` or ``never`` without a change, of what was judged."""
        if self.changes:
            return ", ".join(f"{what} in {label}" for what, label in self.changes)
        judged = [state.is_wrong for state in self.states if state.is_wrong is not None]
        return "not judged" if not judged else "always" if judged[0] else "never"


@dataclass(frozen=True, kw_only=True)
class History:
    """Columns in order, and the rows: those that changed last first, then what was always wrong, then the rest."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def changed(self, what: Literal["broken", "mended"]) -> tuple[str, ...]:
        """The requirements that were broken, or mended, in the last result."""
        return tuple(row.requirement for row in self.rows if (what, self.columns[-1].label) in row.changes)


def history_of(results: Sequence[Result], *, by: Order) -> History:
    """Arrange results by the implementation's version (the older run first within one), or by the time of the run."""
    ordered = sorted(results, key=lambda one: (version_order(one) if by == "version" else (), one.created))
    versions = [one.implementation.version for one in ordered]
    columns = tuple(
        Column(label=label, dated=label != version, result=result)
        for label, version, result in zip(_labels(ordered), versions, ordered, strict=True)
    )
    cells = [_by_requirement(one.result) for one in columns]
    names = dict.fromkeys(name for column in cells for name in column)
    rows = [_row(name, columns, [column.get(name, []) for column in cells]) for name in names]
    labels = [one.label for one in columns]

    def place(row: Row) -> tuple[int, int]:
        if row.changes:
            return 0, -labels.index(row.changes[-1][1])
        return {"always": 1, "never": 2, "not judged": 3}[row.story], 0

    return History(columns=columns, rows=tuple(sorted(rows, key=place)))


def _labels(results: Sequence[Result]) -> list[str]:
    """Versions, with as much of the time of the run, and at last a number, as tells all results apart."""
    versions = [one.implementation.version for one in results]
    labels = versions
    for end in (16, 19):  # minutes, seconds
        labels = [
            f"{version} ({one.created[:end].replace('T', ' ')})" if labels.count(label) > 1 else label
            for label, version, one in zip(labels, versions, results, strict=True)
        ]
    return [
        f"{label} #{labels[:k].count(label) + 1}" if labels.count(label) > 1 else label
        for k, label in enumerate(labels)
    ]


def version_order(result: Result) -> tuple[int | str, ...]:
    """A result's version as it sorts: numbers by value, and 2.15.0.dev… before 2.15.0, as pip does."""
    text = result.implementation.version.partition("+")[0]
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"\.?(?:dev|a|b|rc)\d", text)[0])]
    pre = re.search(r"\.?(dev|a|b|rc)(\d+)", text)
    rank = {"dev": 0, "a": 1, "b": 2, "rc": 3}
    return (*(numbers + [0] * 4)[:4], rank[pre[1]] if pre else 4, int(pre[2]) if pre else 0)


def _by_requirement(result: Result) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in result.cells:
        found.setdefault(cell.requirement, []).append(cell)
    return found


def _row(name: str, columns: Sequence[Column], cells: Sequence[Sequence[Cell]]) -> Row:
    states = tuple(map(_state, cells))
    changes: list[tuple[Literal["broken", "mended"], str]] = []
    before: bool | None = None
    for column, state in zip(columns, states, strict=True):
        if state.is_wrong is None:
            continue
        if before is not None and state.is_wrong != before:
            changes.append(("broken" if state.is_wrong else "mended", column.label))
        before = state.is_wrong
    return Row(requirement=name, states=states, changes=tuple(changes))


def _state(cells: Sequence[Cell]) -> State:
    judged = [cell for cell in cells if cell.status not in _UNJUDGED]
    if not judged:
        return State(status=None)
    ordered = sorted(judged, key=lambda cell: SEVERITY.index(cell.status))
    return State(
        status=ordered[0].status,
        wrong=sum(cell.status not in _GOOD for cell in judged),
        judged=len(judged),
        signatures=tuple(
            dict.fromkeys(
                f"{cell.schedule}: {violation.status}, {violation.signature}"
                for cell in ordered
                for violation in cell.violations
            )
        ),
    )
