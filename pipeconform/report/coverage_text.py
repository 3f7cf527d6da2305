"""Which lines and branches of the implementation's packages the ranks executed, in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.plural import plural
from pipeconform.report.coverage import Coverage

__all__ = ["coverage_lines", "coverage_words", "share"]


def coverage_lines(coverage: Coverage) -> Iterator[str]:
    """The sums, and a line for each file that has functions."""
    yield coverage_words(coverage)
    files = [one for one in coverage.files if one.functions]
    wide = max((len(one.name) for one in files), default=0)
    for one in files:
        yield (
            f"  {one.name:<{wide}}  {share(one.executed_lines, one.lines):>5} of {one.lines:>5,} lines  "
            f"{share(one.executed_branches, one.branches):>5} of {one.branches:>5,} branches  "
            f"{len(one.not_entered):>3} of {one.functions:>3} functions not entered"
        )


def coverage_words(coverage: Coverage) -> str:
    """The sums over all files."""
    files = coverage.files
    lines, branches = sum(one.lines for one in files), sum(one.branches for one in files)
    ran, taken = sum(one.executed_lines for one in files), sum(one.executed_branches for one in files)
    functions, missed = sum(one.functions for one in files), sum(len(one.not_entered) for one in files)
    return (
        f"the cases executed {share(ran, lines)} of {plural(lines, 'line')} and {share(taken, branches)} of "
        f"{branches:,} branches in functions of {', '.join(coverage.packages)}; no case entered {missed:,} of "
        f"{plural(functions, 'function')}"
    )


def share(part: int, whole: int) -> str:
    """A part in percent, rounded down: only the whole is 100 %."""
    return "–" if not whole else f"{100 * part // whole} %"
