"""What an entry of an expectations file says, in words, and whether a result still shows it."""

from __future__ import annotations

import datetime
from pathlib import Path

from pipeconform.gate.expectations import Expectation
from pipeconform.gate.proposal import covers
from pipeconform.plural import plural
from pipeconform.report.result import Result
from pipeconform.report.words import under
from pipeconform.spec.wrappers import any_requirement

__all__ = ["explained"]

_COLUMN = 10


def explained(
    entry: Expectation, *, today: datetime.date, result: Result | None = None, where: Path | None = None
) -> str:
    """An entry in words: what is expected and where, who says why, and what to do next."""
    title = any_requirement(entry.requirement).title
    rows = {
        "expects": f"{entry.told}{_where(entry)}" + (", by chance" if entry.is_chance else ""),
        "seen": entry.seen,
        "cause": entry.cause,
        "reason": entry.reason,
        "issue": entry.issue,
        "owner": entry.owner,
        "expires": "" if "expires" in entry.lacking else _expiry(entry, today),
        "cases": ", ".join(one.path for one in entry.stored),
        "shows": "; ".join(dict.fromkeys(one.text for one in entry.stored if one.text)),
        "result": "" if result is None else _of(result, where) + _shown(entry, result),
        "next": _next(entry, today),
    }
    head = f"{entry.label}: {entry.requirement} {title}"
    return "\n".join([head, *(f"  {name:<{_COLUMN}}{text}" for name, text in rows.items() if text)])


def _where(entry: Expectation) -> str:
    words = under(*entry.schedules) if entry.schedules else " under every schedule"
    words += f", p = {', '.join(map(str, entry.p))}" if entry.p else ""
    words += f", v = {', '.join(map(str, entry.v))}" if entry.v else ""
    words += f", on {entry.device}" if entry.device else ""
    return words + (f", with torch {entry.torch}" if entry.torch else "")


def _expiry(entry: Expectation, today: datetime.date) -> str:
    days = (entry.expires - today).days
    if days < 0:
        return f"{entry.expires}, {plural(-days, 'day')} ago: the entry fails every run"
    return f"{entry.expires}, in {plural(days, 'day')}"


def _of(result: Result, where: Path | None) -> str:
    """Which result is meant: the last one may be of another implementation."""
    return "" if where is None else f"{where} ({result.implementation.reference}) "


def _shown(entry: Expectation, result: Result) -> str:
    """Whether the result shows the failure, or did not ask for it."""
    cells = [cell for cell in result.cells if cell.requirement == entry.requirement]
    shown = [one.id for cell in cells for one in cell.violations if covers(entry, cell, one, result)]
    if shown:
        return f"shows it: {', '.join(shown)}"
    where = [cell for cell in cells if not entry.schedules or cell.schedule in entry.schedules]
    if not any(cell.is_judged for cell in where):
        return "did not judge it"
    return "does not show it: 'pipeconform expect update' drops the entry"


def _next(entry: Expectation, today: datetime.date) -> str:
    if entry.lacking:
        options = " ".join(f"--{field} …" for field in entry.lacking)
        return f"pipeconform expect fill {entry.requirement} {options}"
    if entry.expires < today:
        return f"mend {entry.requirement}, or pipeconform expect fill {entry.requirement} --expires … --again"
    return ""
