"""Saving a result that could not be written: a shortened file in the same place, or the whole result elsewhere."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from pipeconform.errors import BadResultError
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result, Violation, write_result

__all__ = ["rescued"]


def rescued(result: Result, path: Path) -> tuple[Path | None, str]:
    """Write `result`, which could not be written to `path`, in another way.

    First try `path` itself, without the explanations of violations and in as few bytes as possible; then a new
    temporary folder, with everything. Returns the file, or None if both failed, and a sentence about it.
    """
    with suppress(BadResultError):
        write_result(_shortened(result), path, indent=-1)
        return (
            path,
            f"{path} has the verdicts and the smallest cases, without messages, timelines, stacks and values",
        )
    with suppress(BadResultError, OSError):
        elsewhere = Path(tempfile.mkdtemp(prefix="pipeconform-result-")) / RESULT_NAME
        write_result(result, elsewhere)
        return elsewhere, f"the result is in {elsewhere}"
    return None, "no temporary folder can be written to either (TMPDIR names another)"


def _shortened(result: Result) -> Result:
    """The result with only its verdicts and smallest cases."""
    cells = (
        msgspec.structs.replace(cell, violations=tuple(map(_bare, cell.violations))) for cell in result.cells
    )
    return msgspec.structs.replace(result, cells=tuple(cells))


def _bare(violation: Violation) -> Violation:
    return msgspec.structs.replace(
        violation,
        message=violation.signature,
        timeline=None,
        first_wrong=None,
        places=(),
        localisation=None,
    )
