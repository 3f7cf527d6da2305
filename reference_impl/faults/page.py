"""The list of all faults as a page of Markdown: ``python -m pipeconform.reference_impl.faults.page FILE``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import faults
from .fault import Fault

__all__ = ["faults_page"]


def faults_page() -> str:
    """All faults, chapter by chapter of the standard, in the order of the requirements that they break."""
    return "\n".join([*_head(), *_chapters()]).rstrip("\n") + "\n"


def _head() -> Iterator[str]:
    yield "<!-- Generated from reference_impl/faults by 'make standard'; change it there. -->"
    yield ""
    yield "# Implementations that are wrong on purpose"
    yield ""
    yield (
        f"{len(faults.FAULTS)} of them, each a small change of the reference. The suite must catch every one with the "
        f"requirement it breaks and the status given here, on a case that the reference passes; a test checks "
        f"that. To see one caught: `pipeconform run --impl REFERENCE --requirements ID`, where REFERENCE is "
        f"`pipeconform.reference_impl.faults.` followed by the first column."
    )
    yield ""


def _chapters() -> Iterator[str]:
    for chapter, rows in itertools.groupby(
        sorted(faults.FAULTS.values(), key=_place), key=lambda one: _place(one)[0]
    ):
        yield f"## {chapter}"
        yield ""
        yield "| fault | what is wrong | breaks | under | as | reported |"
        yield "|---|---|---|---|---|---|"
        yield from map(_row, rows)
        yield ""


def _place(fault: Fault) -> tuple[str, int, str]:
    chapter, _, number = fault.requirement.partition("-")
    return chapter, int(number), fault.reference


def _row(fault: Fault) -> str:
    where = ".".join(fault.reference.split(".")[3:])
    reported = f"[report]({fault.source})" if fault.source else ""
    cells = (f"`{where}`", fault.summary, fault.requirement, fault.schedule, fault.expected_status, reported)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(faults_page(), "utf-8")
