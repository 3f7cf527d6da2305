"""Distributing a run's cells among workers, and handling workers that end early.

The cells of a schedule are kept together (``--dist loadgroup``), so that one execution serves several requirements.
pytest-xdist's own scheduler has problems with long runs: it finds groups by renaming tests, which pytest 9.2 does not
allow, so it keeps nothing together; a test that kills its worker is started again as often as workers may be replaced,
and then the rest of the run is given up; a worker that is given a group that was already finished waits forever; and a
worker is given its next group two tests too early, while others are idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler.loadgroup import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

__all__ = ["PackedScheduling", "scheduling"]

_ATTEMPTS = 2  # at a test whose worker ended; after that, the test is to blame


class PackedScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives groups to workers, the most expensive first, since the last group decides when the run ends.

    `group` returns the name of a test's group, given the test's id; `weights` has the sort key of each group's cost.
    """

    def __init__(
        self,
        config: pytest.Config,
        log: Producer | None = None,
        *,
        group: Callable[[str], str],
        weights: Mapping[str, tuple[int, int]],
    ) -> None:
        super().__init__(config, log)
        self._group, self._weights = group, weights
        self._ended: Counter[str] = Counter()

    def given_up(self, nodeid: str) -> bool:
        """Whether a test has ended so many workers that it is not started again."""
        return self._ended[nodeid] >= _ATTEMPTS

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker; return the test that it was running, and give the rest of its groups to others."""
        groups = self.assigned_work.pop(node)
        left = {name: tests for name, tests in groups.items() if not all(tests.values())}
        if not left:
            return None
        at: str = next(test for tests in left.values() for test, done in tests.items() if not done)
        self._ended[at] += 1
        if self.given_up(at):
            next(tests for tests in left.values() if at in tests)[at] = True
        self.workqueue.update({name: tests for name, tests in left.items() if not all(tests.values())})
        for other in list(self.assigned_work):
            self._reschedule(other)
        return at

    def _split_scope(self, nodeid: str) -> str:
        return self._group(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._weight), last=False)
        super()._assign_work_unit(node)

    def _weight(self, name: str) -> tuple[int, int]:
        # after a worker's end only part of a group may be left
        ranks, cells = self._weights.get(name, (0, len(self.workqueue[name])))
        return ranks, min(cells, len(self.workqueue[name]))

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down:
            return
        if not self.workqueue:
            node.shutdown()
        elif (
            self._pending_of(self.assigned_work[node]) <= 1
        ):  # a worker starts its last test only when it knows what follows
            self._assign_work_unit(node)


def scheduling(
    config: pytest.Config, log: Any, *, group: Callable[[str], str], weights: Mapping[str, tuple[int, int]]
) -> PackedScheduling | None:
    """The scheduler that keeps schedules together; None if another ``--dist`` mode was chosen."""
    if config.getoption("dist") != "loadgroup":
        return None
    return PackedScheduling(config, log, group=group, weights=weights)
