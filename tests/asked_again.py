"""Tests that fail and pass when they are run again: the failure counts, and a file that the run leaves says so.

Such a test fails by chance, or because of what ran before it: on a busy machine the file distinguishes it from a test
that finds a defect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol  # what pytest calls, too; it has no public name

__all__ = ["AskedAgain"]

_FAILED = pytest.StashKey[list[pytest.TestReport]]()


class AskedAgain:
    """A pytest plugin that runs what failed once more, and adds to a file what passes then."""

    def __init__(self, path: Path, *, begins: bool) -> None:
        self._path = path
        if begins:
            path.unlink(missing_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        if report.failed:
            item.stash.setdefault(_FAILED, []).append(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        result = yield
        failed = tuple(item.stash.get(_FAILED, ()))
        if failed and not any(one.failed for one in runtestprotocol(item, nextitem=nextitem, log=False)):
            self._record(failed)
        return result

    def _record(self, failed: tuple[pytest.TestReport, ...]) -> None:
        load = " ".join(f"{one:.1f}" for one in os.getloadavg())
        lines = [f"==== {failed[0].nodeid} failed, and passed when it was run again; load {load}"]
        for one in failed:
            lines += [f"-- {one.when}", one.longreprtext]
            lines += [text for title, content in one.sections for text in (f"-- {title}", content)]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:  # one write: other workers add to it, too
            file.write("\n".join(lines) + "\n\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._path.exists():
            number = sum(line.startswith("==== ") for line in self._path.read_text().splitlines())
            terminalreporter.line(f"{number} failed and passed when run again: {self._path}", yellow=True)
