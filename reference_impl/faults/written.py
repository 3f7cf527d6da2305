"""Faults of schedules that are written to a file and read again."""

from __future__ import annotations

from dataclasses import replace

from pipeconform.adapter import Plan

from ..adapter import ReferencePipeline
from .fault import breaks


class _ReadOtherwise(ReferencePipeline):
    """Carries out what it reads of a written schedule, without the messages, instead of what was written."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        table = self.table() if plan.rewritten else None
        if table is not None:
            read = [self.read(line.split(",")) for line in table.splitlines()]
            self.plan = replace(plan, table="\r\n".join(map(",".join, read)), rewritten=False)

    def read(self, line: list[str]) -> list[str]:
        """A rank's computations, such as ``0F1``, as they are read."""
        raise NotImplementedError


@breaks("SCH-13", schedule="ZB-H1", tells="does not compute in the order that the plan gives")
class PartsReadAsWhole(_ReadOtherwise):
    """A backward for inputs is read as a whole one, and weight parts are passed over; values are right."""

    def read(self, line: list[str]) -> list[str]:
        return [cell.replace("I", "B") for cell in line if "W" not in cell]


@breaks("SCH-13", schedule="GPipe", tells="does not compute in the order that the plan gives")
class WrittenSorted(_ReadOtherwise):
    """A line is written sorted by microbatches, forwards first."""

    def read(self, line: list[str]) -> list[str]:
        return sorted(line, key=lambda cell: ("F" not in cell, int("".join(filter(str.isdigit, cell[1:])))))
