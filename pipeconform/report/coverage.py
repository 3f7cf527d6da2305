"""Which lines and branches of the implementation's packages the ranks executed, as data.

Only what is inside functions counts: the rest is executed when a package is imported, before any case.
"""

from __future__ import annotations

import msgspec

from pipeconform.reading import Line

__all__ = ["Coverage", "CoveredFile", "NotEntered"]


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strict and immutable."""


class NotEntered(_Data, frozen=True, kw_only=True):
    """A function that no case entered."""

    name: Line
    """Qualified within its file, such as ``PipelineStage.get_fwd_send_ops``."""
    line: int
    """The line of its ``def``, from 1."""
    lines: int
    """How many statements it has."""


class CoveredFile(_Data, frozen=True, kw_only=True):
    """One file: counts of statements and branches inside functions, and what was not executed."""

    name: Line
    """Such as ``torch/distributed/pipelining/stage.py``."""
    lines: int
    branches: int
    missing_lines: tuple[int, ...] = ()
    missing_branches: tuple[tuple[int, int], ...] = ()
    """Pairs of line numbers: from where to where; a negative number leaves the function that begins there."""
    functions: int
    not_entered: tuple[NotEntered, ...] = ()

    @property
    def executed_lines(self) -> int:
        """How many statements were executed."""
        return self.lines - len(self.missing_lines)

    @property
    def executed_branches(self) -> int:
        """How many branches were taken."""
        return self.branches - len(self.missing_branches)


class Coverage(_Data, frozen=True, kw_only=True):
    """What was executed of the packages in all cases of a run, those of controls and of shrinking included."""

    packages: tuple[Line, ...]
    files: tuple[CoveredFile, ...]
