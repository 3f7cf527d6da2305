"""Finds entries of an expectations file that a result does not support.

These are entries that no case shows any more, that match nothing, or that have expired. The opposite, a failure that
no entry expects, is a violation in the result itself.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator

from pipeconform.gate.expectations import Expectation, ExpectationsFile
from pipeconform.report.result import Cell, Result, Violation
from pipeconform.spec.selection import select_requirements

__all__ = ["problems", "unexplained"]


def problems(file: ExpectationsFile, result: Result, *, today: datetime.date) -> tuple[str, ...]:
    """What must be changed in the file, each with its line; empty when every entry is right.

    Entries about requirements, schedules or devices that the run was not asked to judge, or skipped, are not checked.
    """
    return tuple(
        f"{entry.label}: {text}" for entry in file.entries for text in _about(entry, result, today=today)
    )


def _about(entry: Expectation, result: Result, *, today: datetime.date) -> Iterator[str]:
    if today > entry.expires:
        yield f"expired on {entry.expires}: fix {entry.requirement}, or give a new date and the reason for it"
    place = result.environment
    selection = tuple(filter(None, result.run.selection.split(",")))
    asked = select_requirements(selection, kind=result.implementation.kind)
    here = entry.is_for(device=place.device, torch=place.torch)
    if entry.requirement not in asked or not here or not result.run.complete:
        return
    cells = [cell for cell in result.cells if cell.requirement == entry.requirement]
    wanted = entry.schedules or tuple(dict.fromkeys(cell.schedule for cell in cells))
    matched = False
    for schedule in wanted:
        under = [cell for cell in cells if cell.schedule == schedule]
        if any(one.expected == entry.label for cell in under for one in cell.violations):
            matched = (
                True  # if a stored case of it shows nothing any more, the next 'expect update' replaces that
            )
        elif not under:
            yield from _never_judged(entry, schedule, result)
        elif entry.schedules and not _unknown(under) and not (entry.is_chance and under[0].is_judged):
            yield _passes(entry, under[0])
    if not matched and not entry.schedules and cells and not _unknown(cells) and not entry.is_chance:
        judged = sum(_judgements(entry, cell) for cell in cells)
        yield (
            f"matches nothing: {entry.requirement} shows {entry.told} under no schedule "
            f"({judged} judgements); remove the entry"
        )
    if not cells and result.run.unrestricted:
        yield f"matches nothing: {entry.requirement} was not judged; remove the entry"


def _passes(entry: Expectation, cell: Cell) -> str:
    where = f"{cell.requirement} under {cell.schedule}"
    if cell.status == "not_claimed":
        return f"matches nothing: {where} is not claimed; remove {cell.schedule!r} from it"
    if cell.status == "nothing_compared":
        return (
            f"cannot be checked: {where} compared nothing ({cell.reason}), so it neither shows "
            f"{entry.told} nor passes"
        )
    judged = _judgements(entry, cell)
    if not judged:
        return (
            f"matches nothing: no case of {where} has the entry's p and v; remove {cell.schedule!r} from it"
        )
    others = [f"{one.status} '{one.signature}'" for one in cell.violations if not one.expected]
    shown = f"it shows {', '.join(others)} instead" if others else "it passes"
    return (
        f"unexpected pass: {where} no longer shows {entry.told}, {shown} "
        f"({judged} judgements); remove {cell.schedule!r} from the entry, or the entry; "
        f"'pipeconform expect update --write' does that"
    )


def _never_judged(entry: Expectation, schedule: str, result: Result) -> Iterator[str]:
    """Report a schedule that the run could have judged but did not know: misspelt, or no longer claimed."""
    if result.run.unrestricted and entry.requirement in {cell.requirement for cell in result.cells}:
        yield f"matches nothing: there is no schedule {schedule!r}; remove it from the entry"


def _unknown(cells: list[Cell]) -> bool:
    """Whether the run does not show it: all the cells were skipped, or the harness failed, which fails the run."""
    return all(cell.status == "skipped" for cell in cells) or any(cell.is_broken for cell in cells)


def _judgements(entry: Expectation, cell: Cell) -> int:
    """How many judgements of a cell were about the entry's sizes."""
    total = 0
    for key, count in cell.counts.items():
        found = re.fullmatch(r"p=(\d+),v=(\d+)", key)
        if found and entry.covers_size(num_ranks=int(found[1]), stages_per_rank=int(found[2])):
            total += count
    return total


def unexplained(cells: Iterable[Cell]) -> tuple[Violation, ...]:
    """The violations that another requirement blocks, unless all that is violated there is expected."""
    found = {(one.requirement, one.schedule, one.variant): one for one in cells}

    def is_known(violation: Violation, cell: Cell) -> bool:
        blocker = found.get((violation.blocked_by, cell.schedule, cell.variant))
        return bool(violation.expected) or (blocker is not None and blocker.is_expected)

    return tuple(
        violation
        for cell in found.values()
        for violation in cell.violations
        if violation.blocked_by and not is_known(violation, cell)
    )
