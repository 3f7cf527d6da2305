"""Settles a comparison by executing its cases again: a change that does not show every time is flaky."""

from __future__ import annotations

import msgspec

from pipeconform.campaign.options import Options
from pipeconform.campaign.rejudge import Question, rejudge
from pipeconform.gate.comparison import Change, Comparison
from pipeconform.report.result import Cell, Result, Violation

__all__ = ["TIMES", "settle"]

TIMES = 3
"""Executions of each case."""


def settle(comparison: Comparison, old: Result, new: Result, *, options: Options) -> Comparison:
    """Execute the case of each regression, new failure and fix again, on the implementation of `new`.

    A regression that does not show every time becomes "flaky"; a fixed violation that shows again becomes "sometimes".

    Raises:
        UsageError: the implementation cannot be used.
        HarnessError: the harness failed.
    """
    found = {v.id: (cell, v) for cell in new.cells for v in cell.violations}
    gone = {v.id: (cell, v) for cell in old.cells for v in cell.violations}
    asked: list[tuple[Change, Cell, Violation]] = []
    for change in comparison.changes:
        if change.kind in ("regressed", "new"):
            asked.append((change, *found[change.violation]))
        elif change.kind == "fixed":
            asked.append((change, *gone[change.violation]))
    questions = [
        Question(
            requirement=cell.requirement,
            variant=cell.variant,
            case=violation.case,
            hung=violation.status == "hung",
        )
        for _, cell, violation in asked
    ]
    answers = rejudge(questions, options=options, times=TIMES)
    settled = {
        id(change): _settled(change, again.times(violation.status, violation.signature))
        for (change, _, violation), again in zip(asked, answers, strict=True)
    }
    changes = tuple(settled.get(id(change), change) for change in comparison.changes)
    return msgspec.structs.replace(comparison, changes=changes)


def _settled(change: Change, times: int) -> Change:
    steady = times == 0 if change.kind == "fixed" else times == TIMES
    if steady:
        return change
    detail = f"executed again, its case showed the violation {times} of {TIMES} times"
    # the old result shows a "sometimes" too, so it is nothing new
    kind = "sometimes" if change.kind == "fixed" else "flaky"
    return msgspec.structs.replace(change, kind=kind, detail=detail)
