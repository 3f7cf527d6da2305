"""The pytest plugin that `pipeconform wrappers run` loads: one test per requirement of chapter DPW."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeconform.errors import HarnessError, UsageError
from pipeconform.replication.campaign import WrapperCampaign
from pipeconform.replication.result import WrapperCell, WrapperResult, write_wrapper_result
from pipeconform.replication.setup import campaign_of, result_of, selected
from pipeconform.replication.text import cell_text
from pipeconform.spec.wrappers import wrapper_requirement

__all__ = ["RESULT_NAME", "WrapperRun"]

RESULT_NAME = "wrappers.json"
_MARK = "pipeconform_wrapper_requirement"


class WrapperRun:
    """A run in this process, as a plugin object; `result` is there when the session has ended."""

    def __init__(self, implementation: str, *, requirements: tuple[str, ...], seed: int, out: Path) -> None:
        """Raise `UnknownNameError` for a requirement that there is not."""
        self.implementation, self.seed, self.out = implementation, seed, out
        self.selection, self.wanted = ",".join(requirements), frozenset(selected(requirements))
        self.cells: list[WrapperCell] = []
        self.result: WrapperResult | None = None
        self.refused: UsageError | HarnessError | None = None
        self._stack = ExitStack()
        self._campaign: WrapperCampaign | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Register the marker; the folder of the chapter is collected because this plugin is there."""
        config.addinivalue_line("markers", f"{_MARK}(id): the requirement that a test judges of a wrapper")

    def pytest_collection_modifyitems(self, items: list[pytest.Item], config: pytest.Config) -> None:
        """Drop the tests of requirements that were not asked for."""
        absent = [item for item in items if _requirement_of(item) not in self.wanted]
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]

    def pytest_collection_finish(self) -> None:
        """Start the processes."""
        try:
            self._campaign = self._stack.enter_context(campaign_of(self.implementation, seed=self.seed))
        except (UsageError, HarnessError) as error:
            self.refused = error
            pytest.exit(str(error), returncode=error.exit_code)

    @pytest.fixture
    def pipeconform_judge_wrapper(self, request: pytest.FixtureRequest) -> Callable[[], None]:
        """Judge the test's requirement; calling it fails the test with the smallest counter-examples."""
        return lambda: self._judge(_requirement_of(request.node))

    def _judge(self, identifier: str) -> None:
        assert self._campaign is not None
        try:
            cell = self._campaign.judge_cell(wrapper_requirement(identifier))
        except HarnessError as error:
            cell = WrapperCell(requirement=identifier, status="error", reason=f"the harness failed: {error}")
        self.cells.append(cell)
        if cell.status == "not_claimed":
            pytest.skip(cell.reason)
        if cell.status != "passed":
            pytest.fail(cell_text(cell), pytrace=False)

    def pytest_sessionfinish(self) -> None:
        """Write the result and end the processes."""
        try:
            if self._campaign is not None and self.cells:
                self.result = result_of(self._campaign, self.cells, selection=self.selection)
                write_wrapper_result(self.result, self.out / RESULT_NAME)
        finally:
            self._stack.close()


def _requirement_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker(_MARK)
    return "" if marker is None else str(marker.args[0])
