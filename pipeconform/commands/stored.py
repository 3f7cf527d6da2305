"""The stored case that `replay` executes, from a case file or a result, and what it showed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeconform.case.any_case import AnyCase, decode_any_case
from pipeconform.errors import BadCaseError, UnknownNameError, UsageError
from pipeconform.reading import file_bytes
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Violation, read_result

if TYPE_CHECKING:
    from pipeconform.campaign.again import Sought

__all__ = ["Stored", "read_stored"]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A case to execute again, and the violation that it showed, if that is known."""

    name: str
    case: AnyCase
    requirement: str | None = None
    variant: str = "default"
    violation: Violation | None = None

    @property
    def words(self) -> str:
        """The violation: requirement, status and signature on one line, then the message."""
        if self.violation is None:
            return "a case without a known violation"
        return f"{self.requirement} {self.violation.status}: {self.violation.signature}\n{self.violation.message}"

    @property
    def sought(self) -> Sought | None:
        """The violation to look for; None if none is known."""
        from pipeconform.campaign.again import Sought  # noqa: PLC0415 - imports torch

        if self.violation is None or self.requirement is None:
            return None
        one = self.violation
        return Sought(requirement=self.requirement, status=one.status, signature=one.signature)

    @property
    def hung(self) -> bool:
        """Whether the violation was a hang."""
        return self.violation is not None and self.violation.status == "hung"


def read_stored(stored: str, *, result: Path) -> Stored:
    """Read a case file, or find a violation, or a cell that could not be judged, of a result file by its id.

    Raises:
        BadCaseError: the case file cannot be read.
        BadResultError: the result file cannot be read.
        UnknownNameError: the result file has no violation with that id.
    """
    path = Path(stored)
    # an ID may be longer than a file's name can be, for which Path.is_file raises
    if path.suffix == ".json" or os.path.isfile(path):
        return Stored(name=stored, case=decode_any_case(_text(path), source=stored))
    file = result / RESULT_NAME if result.is_dir() else result
    cells = read_result(file).cells
    for one in cells:
        if one.id == stored and one.case is not None:
            return Stored(name=stored, case=one.case, requirement=one.requirement, variant=one.variant)
    violations = {v.id: (cell, v) for cell in cells for v in cell.violations}
    if stored not in violations:
        if not violations:
            raise UsageError(f"{file} holds no violation, so there is nothing to replay")
        raise UnknownNameError(f"violation (in {file})", stored, violations)
    cell, violation = violations[stored]
    return Stored(
        name=stored,
        case=violation.case,
        requirement=cell.requirement,
        variant=cell.variant,
        violation=violation,
    )


def _text(path: Path) -> bytes:
    data = file_bytes(path, error=BadCaseError)
    if b'"cells"' in data and b'"totals"' in data:
        raise BadCaseError(
            f"{path} is a result file: replay one of its violations by ID, with --result {path}"
        )
    return data
