"""How a distributed run's cells are given to workers, and what happens to those of a worker that ends.

The cells of a schedule are kept together (``--dist loadgroup``), which is what makes executions serve several
requirements. pytest-xdist's own scheduler has traps that a long run meets: it finds groups in names of tests, which
pytest 9.2 does not let it change, so that it keeps nothing together; a test that ends its worker is begun again as
often as workers may be replaced, and then the rest of the run is given up; a worker that is handed a group that was
finished already waits for ever; and a worker is handed its next group two tests too early, while others are idle.
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

_ATTEMPTS = 2  # at a test whose worker ended; then it is the test


class PackedScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives groups to workers, the heaviest first: what is begun last decides when the run ends.

    `group` names that of a test, by its id; `weights` says by group how heavy it is, in numbers that compare.
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
        """Whether a test has ended so many workers that it is not begun again."""
        return self._ended[nodeid] >= _ATTEMPTS

    def remove_node(self, node: WorkerController) -> str | None:
        """Part with a worker; return the test that it was at, and give what is left of its groups to others."""
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
        # after a worker's end less of a group may be left than there was
        ranks, cells = self._weights.get(name, (0, len(self.workqueue[name])))
        return ranks, min(cells, len(self.workqueue[name]))

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down:
            return
        if not self.workqueue:
            node.shutdown()
        elif (
            self._pending_of(self.assigned_work[node]) <= 1
        ):  # it begins its last test when it knows what follows
            self._assign_work_unit(node)


def scheduling(
    config: pytest.Config, log: Any, *, group: Callable[[str], str], weights: Mapping[str, tuple[int, int]]
) -> PackedScheduling | None:
    """The scheduler of a run whose schedules are kept together; None where pytest was told otherwise."""
    if config.getoption("dist") != "loadgroup":
        return None
    return PackedScheduling(config, log, group=group, weights=weights)
