"""Cells and violations as plain text, for pytest's output and other reports."""

from __future__ import annotations

import textwrap
from pathlib import Path

from pipeconform.report.case_text import describe_case
from pipeconform.report.cause_text import replay_line
from pipeconform.report.result import Cell, Violation
from pipeconform.report.words import control_words, reservation
from pipeconform.spec.wrappers import any_requirement

__all__ = ["describe_cell", "describe_violation", "headline"]

_LONGEST_HEADLINE = 200


def headline(cell: Cell) -> str:
    """What is wrong in a failing cell, in one line: its first unexpected violation, and how many more there are."""
    wrong = [one for one in _accusing_first(cell) if not one.expected]
    if not wrong:
        return _shortened(cell.reason.strip() or cell.status.replace("_", " "))
    first, *others = wrong
    more = f" (and {len(others)} more)" if others else ""
    status = "flaky" if not first.confirmed else first.status
    line = first.message.strip().partition("\n")[0]
    said = line if first.status == "error" and line else ": ".join(filter(None, (first.signature, line)))
    return f"{status}: {_shortened(said)}" + (f" ({first.where})" if first.where else "") + more


def _shortened(text: str) -> str:
    return textwrap.shorten(text.partition("\n")[0], _LONGEST_HEADLINE, placeholder=" …")


def _accusing_first(cell: Cell) -> list[Violation]:
    return sorted(cell.violations, key=lambda violation: bool(violation.blocked_by))


def describe_cell(cell: Cell, *, where: Path | None = None) -> str:
    """A failing cell: the requirement's sentence and every violation, those that accuse first.

    `where` is the result file, which the commands that replay name unless it has its default place.
    """
    row = any_requirement(cell.requirement)
    head = (
        f"{row.id} {row.title} ({row.level}), schedule {cell.schedule}, variant {cell.variant}: {cell.status}"
    )
    parts = [head, f"  {row.statement}"]
    if cell.reason:
        parts.append(f"  {cell.reason}")
    parts.extend(
        _indented(describe_violation(violation, where=where), 2) for violation in _accusing_first(cell)
    )
    return "\n".join(parts)


def describe_violation(violation: Violation, *, where: Path | None = None) -> str:
    """One violation: where, what, the smallest case, how to replay it; `where` is the result file."""
    note = reservation(violation)
    lines = [
        f"{violation.status}: {violation.signature}" + (f" ({violation.where})" if violation.where else ""),
        _indented(violation.message, 2),
        f"  in {violation.occurrences} case{'s' if violation.occurrences != 1 else ''}; "
        f"the smallest, {violation.digest}:",
        _indented(describe_case(violation.case), 4),
        *([f"  {note}"] if note else []),
        *([] if violation.control is None else [f"  {control_words(violation.control)}"]),
        f"  replay: {replay_line(violation, where=where)}",
    ]
    return "\n".join(lines)


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in text.splitlines())
