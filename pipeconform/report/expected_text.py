"""What the summary says about expected failures and about the file that expects them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from pipeconform.report.result import Cell, Result
from pipeconform.report.words import plural, under

__all__ = ["expected_lines", "problem_lines"]


def expected_lines(cells: Iterable[Cell]) -> Iterator[Text]:
    """One line per entry that was met: what it covers, and how many drawn cases showed it."""
    found: dict[str, list[tuple[Cell, int]]] = {}
    for cell in cells:
        for violation in cell.violations:
            if violation.expected:
                key = f"{cell.requirement} {violation.status} '{violation.signature}'\0{violation.expected}"
                found.setdefault(key, []).append((cell, violation.occurrences))
    for key, several in found.items():
        what, _, label = key.partition("\0")
        where = under(*dict.fromkeys(cell.schedule for cell, _ in several))
        drawn = plural(sum(count for _, count in several), "drawn case")
        yield Text(f"expected: {what}{where}, in {drawn} ({label})", style="dim")


def problem_lines(result: Result) -> Iterator[Text]:
    """What must be changed in the expectations file."""
    if result.expectations is not None:
        for problem in result.expectations.problems:
            yield Text(problem, style="bold red")
