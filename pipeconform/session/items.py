"""The pytest items of the standard: a test per requirement, schedule and variant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from _pytest._code.code import (
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
    TerminalRepr,
)

from pipeconform.campaign.told import group_of
from pipeconform.spec.catalogue import Statement, statements_in

__all__ = ["CELL", "SuiteFile", "SuiteItem", "ViolatedError"]

CELL = "pipeconform_cell"
"""The name of the report property that contains the cell as JSON."""


class ViolatedError(Exception):
    """A cell's requirement is violated.

    `headline` says in a line what is wrong, for pytest's short summary; `text` is what a failed test shows.
    """

    def __init__(self, headline: str, text: str) -> None:
        super().__init__(headline)
        self.headline, self.text = headline, text


class Cells(Protocol):
    """What knows the cells of a requirement."""

    def cells_of(self, requirement: str) -> list[tuple[str, str, str]]:
        """Requirement, schedule and variant of each cell; empty for a requirement that was not asked for."""


class Run(Protocol):
    """What judges the items."""

    @property
    def judging(self) -> Cells:
        """What was asked for."""

    def judge(self, item: SuiteItem) -> None:
        """Judge the item's cell; fail its test with the smallest counter-examples."""


class SuiteFile(pytest.File):
    """A file of the suites."""

    def __init__(self, *, run: Run, **known: Any) -> None:
        super().__init__(**known)
        self._run = run

    def collect(self) -> Iterator[SuiteItem]:
        """A test for each selected cell; under xdist the cells of a schedule stay together."""
        for name, statement in statements_in(self.path).items():
            for cell in self._run.judging.cells_of(statement.requirement.id):
                test = f"{name}[{':'.join(cell)}]"
                item: SuiteItem = SuiteItem.from_parent(
                    self,
                    name=test,
                    nodeid=f"{self.nodeid}::{test}",  # given as text: --lf compares it with ids read from a file
                    run=self._run,
                    statement=statement,
                    cell=cell,
                )
                item.add_marker(pytest.mark.xdist_group(group_of(*cell[:2])))
                yield item


class SuiteItem(pytest.Item):
    """A requirement under one schedule, in one variant of the environment."""

    def __init__(self, *, run: Run, statement: Statement, cell: tuple[str, str, str], **known: Any) -> None:
        super().__init__(**known)
        self._run, self._statement = run, statement
        self.cell = cell

    def runtest(self) -> None:
        """Judge the cell; a failure shows the smallest cases."""
        self._run.judge(self)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | TerminalRepr:
        """A violation in the words of the standard, without a traceback; pytest's own form for other errors."""
        if not isinstance(excinfo.value, ViolatedError):
            return super().repr_failure(excinfo, style)
        path, line, _ = self.reportinfo()
        shown = ReprEntryNative([excinfo.value.text + "\n"])
        return ReprExceptionInfo(
            reprtraceback=ReprTraceback(reprentries=[shown], extraline=None, style="native"),
            reprcrash=ReprFileLocation(str(path), line + 1, excinfo.value.headline),
        )

    def reportinfo(self) -> tuple[Path, int, str]:
        """The requirement's file and line, and the test's name."""
        return self.path, self._statement.line - 1, self.name
