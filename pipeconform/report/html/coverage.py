"""The page's view of what the cases executed of the implementation's packages."""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.report.coverage import Coverage, CoveredFile
from pipeconform.report.coverage_text import coverage_words, share

__all__ = ["CoverageView", "coverage_view"]


@dataclass(frozen=True, kw_only=True)
class FileView:
    """One file with functions."""

    name: str
    lines: str
    branches: str
    not_entered: str
    functions: tuple[str, ...]
    """The functions that no case entered, such as ``_get_stage, line 12``."""


@dataclass(frozen=True, kw_only=True)
class CoverageView:
    """All files with functions, and their sums."""

    words: str
    files: tuple[FileView, ...]


def coverage_view(coverage: Coverage) -> CoverageView:
    """The view of what was measured."""
    return CoverageView(
        words=coverage_words(coverage),
        files=tuple(_file(one) for one in coverage.files if one.functions),
    )


def _file(one: CoveredFile) -> FileView:
    return FileView(
        name=one.name,
        lines=f"{share(one.executed_lines, one.lines)} of {one.lines:,}",
        branches=f"{share(one.executed_branches, one.branches)} of {one.branches:,}",
        not_entered=f"{len(one.not_entered)} of {one.functions}",
        functions=tuple(f"{missed.name}, line {missed.line}" for missed in one.not_entered),
    )
