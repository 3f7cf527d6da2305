"""Records what a rank adds up with others, and when in the order of its computations.

Sees every operator of ``torch.distributed``, whichever API issued it (`ranks.recording.kernels`). Memory in flight is
left alone. Integers and flags are not recorded: replicas may agree on something in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from pipeconform.observe.observation import Reduction
from pipeconform.ranks.recording.kernels import Call, listening, tensors_in

__all__ = ["ReductionRecorder", "reduction_recorder"]

_REDUCE = frozenset(
    {
        "allreduce_",
        "allreduce_coalesced_",
        "reduce_",
        "reduce_scatter_",
        "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_",
    }
)
_SCATTER = frozenset({"reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"})


class ReductionRecorder:
    """The reductions since the last `take`; `groups` are the data-parallel groups by stage.

    `count` says how many events of the timeline have been seen.
    """

    def __init__(self, groups: Mapping[int, dist.ProcessGroup]) -> None:
        self._stages = {group.group_name: s for s, group in groups.items()}
        self._ranks = {_ranks_of(group): s for s, group in sorted(groups.items(), reverse=True)}
        self.count: Callable[[], int] | None = None
        self._found: list[Reduction] = []
        self._lock = threading.Lock()

    def take(self) -> tuple[Reduction, ...]:
        """Return what was recorded, and start again."""
        with self._lock:
            taken, self._found = tuple(self._found), []
        return taken

    # The calls of `kernels.Listener`.

    def called(self, call: Call) -> Any:
        """Record the call if it is a reduction; run it."""
        if call.name in _REDUCE:
            self._note(call)
        return call.run(call.arguments)

    def batched(self, run: Callable[[], Any]) -> Any:
        """Run the batch."""
        return run()

    def coalescing(self, group: dist.ProcessGroup) -> None:
        """Ignore how operations are issued."""

    def coalesced(self, group: dist.ProcessGroup, work: dist.Work | None) -> None:
        """Ignore how operations are issued."""

    def waited(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Wait."""
        return wait()

    def synchronised(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Wait."""
        return wait()

    def polled(self, work: dist.Work, complete: bool) -> None:
        """Ignore the poll."""

    def waited_for_tensors(self, tensors: Sequence[torch.Tensor], wait: Callable[[], Any]) -> Any:
        """Wait."""
        return wait()

    def _note(self, call: Call) -> None:
        tensors = [one for one in tensors_in(call.arguments) if one.is_floating_point()]
        if not tensors:
            return
        sizes = [one.numel() for one in tensors]
        count, given = self.count, self._stages.get(call.group.group_name)
        stage = self._ranks.get(_ranks_of(call.group), -1) if given is None else given
        found = Reduction(
            call.name,
            stage,
            # the input and the result are both among the arguments of a scatter
            sum(sizes) * call.group.size() // (call.group.size() + 1)
            if call.name in _SCATTER
            else sum(sizes),
            -1 if count is None else count(),
            alike=given is None and stage >= 0,
        )
        with self._lock:
            self._found.append(found)


def _ranks_of(group: dist.ProcessGroup) -> frozenset[int]:
    return frozenset(dist.get_process_group_ranks(group))


@contextmanager
def reduction_recorder(
    observe: tuple[str, ...], groups: Mapping[int, dist.ProcessGroup]
) -> Iterator[ReductionRecorder | None]:
    """Record if ``reductions`` are to be observed; None otherwise."""
    if "reductions" not in observe:
        yield None
        return
    recorder = ReductionRecorder(groups)
    with listening(recorder):
        yield recorder
