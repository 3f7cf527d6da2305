"""Tables that cannot be carried out, made from ones that can."""

from __future__ import annotations

import re

from pipeconform.case.misplans import NO_COMPUTATION, Misplan
from pipeconform.schedule import Table

__all__ = ["spoiled"]

_Lines = list[list[str]]
"""The computations of each rank as text, such as ``0F2``."""


def spoiled(table: Table, misplan: Misplan) -> list[list[str]]:
    """The lines of a table with the mistake of `misplan`; it has computations only, and every microbatch's."""
    lines = [list(map(str, actions)) for actions in table]
    stage, k, last = misplan.stage, misplan.number, table.num_microbatches - 1
    match misplan.how:
        case "no forward":
            _line_of(lines, f"{stage}F{k}").remove(f"{stage}F{k}")
        case "no backward":
            part = _backward(lines, stage, k, "W")
            _line_of(lines, part).remove(part)
        case "no computation":
            line = _line_of(lines, f"{stage}F{k}")
            line[line.index(f"{stage}F{k}")] = NO_COMPUTATION
        case "forward twice":
            _repeat(lines, f"{stage}F{k}")
        case "backward twice":
            _repeat(lines, _backward(lines, stage, k, "W"))
        case "backward first":
            _move(lines, _backward(lines, stage, k, "I"), before=f"{stage}F{k}")
        case "other microbatch":
            for line in lines:
                line[:] = [re.sub(rf"(?<=\D){last}$", str(last + 1), cell) for cell in line]
        case "circle":
            _wait_for_each_other(lines, table.num_stages - 1, last)
        case "no line":
            del lines[-1]
        case "lines exchanged":
            lines[:2] = lines[1], lines[0]
    return lines


def _line_of(lines: _Lines, cell: str) -> list[str]:
    return next(line for line in lines if cell in line)


def _move(lines: _Lines, cell: str, *, before: str = "", behind: str = "") -> None:
    line = _line_of(lines, cell)
    line.remove(cell)
    line.insert(line.index(before) if before else line.index(behind) + 1, cell)


def _repeat(lines: _Lines, cell: str) -> None:
    line = _line_of(lines, cell)
    line.insert(line.index(cell), cell)


def _backward(lines: _Lines, stage: int, k: int, part: str) -> str:
    """The backward of a stage for a microbatch, or that part of it, I or W, if it has two."""
    whole = f"{stage}B{k}"
    return whole if any(whole in line for line in lines) else f"{stage}{part}{k}"


def _wait_for_each_other(lines: _Lines, last_stage: int, last: int) -> None:
    """Put forwards and backwards of both stages in such an order.

    Stage 0's last forward comes behind its first backward, and the last stage's first backward behind its last forward,
    which needs that of stage 0.
    """
    _move(lines, f"0F{last}", behind=_backward(lines, 0, 0, "I"))
    first, second = _backward(lines, last_stage, 0, "I"), _backward(lines, last_stage, 0, "W")
    _move(lines, first, behind=f"{last_stage}F{last}")
    if second != first:
        _move(lines, second, behind=first)
