"""The words and colours for statuses, the same in every view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.plural import plural
from pipeconform.report.result import Cell, Control, Status, Violation

__all__ = [
    "COLOURS",
    "EXPECTED",
    "WORDS",
    "claimed_elsewhere",
    "control_words",
    "counted",
    "moment",
    "reservation",
    "returned_unclaimed",
    "under",
]

WORDS: Mapping[Status, str] = MappingProxyType(
    {
        "passed": "ok",
        "failed": "FAIL",
        "hung": "HUNG",
        "crashed": "CRASH",
        "error": "ERR",
        "flaky": "FLAKY",
        "blocked": "block",
        "nothing_compared": "NONE",
        "not_claimed": "–",
        "skipped": "skip",
    }
)
"""Short, and readable without colour."""

COLOURS: Mapping[Status, str] = MappingProxyType(
    {
        "passed": "green",
        "failed": "bold red",
        "hung": "bold magenta",
        "crashed": "bold red",
        "error": "bold yellow",
        "flaky": "bold yellow",
        "blocked": "yellow",
        "nothing_compared": "bold yellow",
        "not_claimed": "dim",
        "skipped": "dim",
    }
)

EXPECTED = "known"
"""Stands for a cell whose violations are all expected."""

_NAMES: Mapping[Status, str] = MappingProxyType(
    {
        "blocked": "blocked",
        "nothing_compared": "nothing compared",
        "not_claimed": "not claimed",
        "skipped": "skipped",
    }
)


def counted(statuses: Iterable[Status], *, where: Mapping[Status, Iterable[str]] | None = None) -> str:
    """How many of each status, always in the same order: ``12 ok, 3 FAIL, 2 not claimed``.

    `where` names the schedules of some statuses, which follow in brackets: ``2 ok, 1 FAIL (GPipe)``.
    """
    counts, places = Counter(statuses), where or {}
    return ", ".join(
        f"{counts[s]} {_NAMES.get(s, word)}"
        + (f" ({', '.join(dict.fromkeys(places[s]))})" if s in places else "")
        for s, word in WORDS.items()
        if counts[s]
    )


def under(*schedules: str) -> str:
    """``" under GPipe, 1F1B"``; empty for a wrapper, which has no schedule."""
    return "" if schedules == (WRAPPER_COLUMN,) else f" under {', '.join(schedules)}"


def returned_unclaimed(cells: Iterable[Cell]) -> tuple[str, ...]:
    """A sentence for each feature that is returned but not claimed; only what is claimed is judged fully."""
    found = sorted({name for cell in cells for name in cell.unclaimed})
    return tuple(f"returns {name.replace('_', ' ')}, does not claim Feature.{name.upper()}" for name in found)


def claimed_elsewhere(capabilities: Any) -> tuple[str, ...]:
    """What the adapter claims with other releases of the engine only, each with what this one lacks."""
    found = capabilities.get("elsewhere") if isinstance(capabilities, dict) else None
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def moment(created: str) -> str:
    """When a result was made: ``2026-11-24 04:43 UTC``; without a zone if it is another one."""
    return created[:16].replace("T", " ") + (" UTC" if created.endswith("+00:00") else "")


def reservation(violation: Violation) -> str:
    """What a reader must know before relying on a smallest case; empty if nothing."""
    again = (
        f"executed again, the case showed it {violation.shown_again} of {plural(violation.reruns, 'time')}"
    )
    if violation.shown_otherwise:
        again += f", and another violation {plural(violation.shown_otherwise, 'time')}"
    if not violation.confirmed:
        return f"flaky: {again}"
    if violation.shown_otherwise:
        return f"wrong each time, but not always in the same way: {again}"
    if violation.minimal:
        return ""
    if violation.found_by:
        return "not minimal: a control of another requirement's case, which is not made smaller"
    return "not minimal: the budget for shrinking ran out"


def control_words(control: Control) -> str:
    """What a violation's control showed: ``control: without the delay, the case is right``."""
    change = f"{control.words}, " if control.words else ""
    if not control.requirement:
        return f"control: {change}the case shows nothing wrong"
    found = f"{control.requirement} is violated ({control.status}: {control.signature})"
    return f"blocked: {change}{found}, whose business it is"
