"""Lets ``-x`` and ``--lf`` count a blocked cell as not met, although its test is skipped.

The test of a blocked cell is skipped, because the cell accuses nobody; what blocks it fails elsewhere, or in a run of
its own. But the requirement is not met: a run that was to stop there stops, and the next one judges the cell again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from pipeconform.plural import plural
from pipeconform.report.result import Cell, decode_cell
from pipeconform.session.items import CELL

__all__ = ["NotMet"]

_FAILED = "cache/lastfailed"
"""Where pytest keeps the ids of tests that failed."""


class NotMet:
    """The pytest hooks of one session; `is_not_met` says whether a cell that is blocked counts."""

    def __init__(self, config: pytest.Config, *, is_not_met: Callable[[Cell], bool]) -> None:
        self._config, self._is_not_met = config, is_not_met
        self._session: pytest.Session | None = None
        self._blocked: dict[str, Cell] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, which is told to stop."""
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a blocked cell, and stop after as many as ``-x`` or ``--maxfail`` allow."""
        carried = [value for key, value in report.user_properties if key == CELL]
        if report.when != "call" or not carried:
            return
        cell = decode_cell(str(carried[-1]))
        if cell.status != "blocked" or not self._is_not_met(cell):
            return
        self._blocked[report.nodeid] = cell
        self._stop_if_enough()

    def _stop_if_enough(self) -> None:
        assert self._session is not None, "reports come after the session's start"
        distributor = self._config.pluginmanager.get_plugin("dsession")
        failed = self._session.testsfailed if distributor is None else distributor.countfailures
        most, found = self._config.getoption("maxfail", 0), failed + len(self._blocked)
        if not most or found < most:
            return
        why = f"stopping after {plural(found, 'cell')} not met"
        if distributor is None:
            self._session.shouldfail = why
        else:
            distributor.shouldstop = why

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Add the blocked cells to those that ``--lf`` chooses, when pytest has written them."""
        ended = yield
        if self._blocked and self._config.pluginmanager.has_plugin("lfplugin"):
            cache = self._config.cache
            assert cache is not None, "the plugin that chooses what failed needs it"
            cache.set(_FAILED, {**cache.get(_FAILED, {}), **dict.fromkeys(self._blocked, True)})
        return ended
