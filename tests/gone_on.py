"""A long run of the tests that goes on where it was stopped: what has passed is not run again.

A file keeps a line for each test that ended, with the commit it ran on. Remove the file to begin anew.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

__all__ = ["GoneOn", "last_outcomes"]

DONE = ("passed", "skipped")


def last_outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each test in the file; a line that an interruption cut is left out."""
    last = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            continue
        last[one["test"]] = one
    return last


def _commit() -> str:
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "unknown"
    return said.stdout.strip() or "unknown"


class GoneOn:
    """A pytest plugin that leaves out what has passed already, and adds to a file how each test ended.

    Args:
        path: The file.
        keeps: Whether this process writes it: with workers, the one that controls them.
    """

    def __init__(self, path: Path, *, keeps: bool) -> None:
        self._path = path
        self._keeps = keeps
        self._earlier = last_outcomes(path)
        self._phases: dict[str, list[pytest.TestReport]] = {}
        self._commit = _commit() if keeps else ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        def done(item: pytest.Item) -> bool:
            return self._earlier.get(_plain(item.nodeid), {}).get("outcome") in DONE

        config.hook.pytest_deselected(items=[one for one in items if done(one)])
        items[:] = [one for one in items if not done(one)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._keeps:
            return
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when == "teardown":
            self._keep(report.nodeid, self._phases.pop(report.nodeid))

    def _keep(self, test: str, phases: list[pytest.TestReport]) -> None:
        outcomes = {one.outcome for one in phases}
        line = {
            "test": _plain(test),
            "outcome": next(one for one in ("failed", "skipped", "passed") if one in outcomes),
            "seconds": round(sum(one.duration for one in phases), 1),
            "commit": self._commit,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._keeps:
            last = last_outcomes(self._path).values()
            numbers = Counter(one["outcome"] for one in last)
            said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(numbers.items()))
            commits = len({one["commit"] for one in last})
            terminalreporter.line(f"all parts so far, on {commits} commit(s): {said} ({self._path})")


def _plain(name: str) -> str:
    """A test's name without the group that pytest-xdist adds to it."""
    return name.rpartition("@")[0] if "@" in name.rpartition("]")[2] else name
