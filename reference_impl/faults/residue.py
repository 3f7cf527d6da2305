"""Faults of what stays behind: during a step, after it, after closing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks


@breaks("LIF-3")
class OutputsKept(Stage):
    """Every stage's outputs are kept until those of the next step replace them."""

    outputs: dict[int, Any] | None = None

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        self.outputs = {**(self.outputs or {}), microbatch: output}
        return output


@breaks("LIF-3")
class ThreadsLeft(ReferencePipeline):
    """Every pipeline starts a thread that never ends."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@breaks("LIF-3")
class GroupsLeft(ReferencePipeline):
    """Every pipeline makes a process group that close() does not destroy."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if len(plan.ranks.pipeline_ranks) == plan.ranks.world_size:  # all ranks must call it, in one order
            self.own = dist.new_group()


@breaks("LIF-3")
class StepsCollected(ReferencePipeline):
    """A number is kept of every step, for statistics that are never read."""

    history: list[Tensor]

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        self.history = [*getattr(self, "history", []), torch.ones(1)]
        return result


@breaks("LIF-7", source="https://github.com/pytorch/pytorch/issues/128910", also=("SCH-2",))
class GraphsKeptInStep(Stage):
    """Graphs are kept until the step ends, so that memory grows with m.

    Runs whole backwards as two parts, and forgets neither before the step ends.
    """

    hoard: tuple[Any, ...] = ()

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = self.backward_input(microbatch, gradients)
        self.hoard = (*self.hoard, self._weight_parts[microbatch])
        self.backward_weight(microbatch)
        return found

    def clear(self) -> None:
        super().clear()
        self.hoard = ()


@breaks("LIF-8")
class ClosedOnce(ReferencePipeline):
    """The second close() raises, because the first one removed what it looks for."""

    def close(self) -> None:
        super().close()
        del self.stages


@breaks("LIF-8", tells=r"after close\(\) the pipeline's group is gone")
class GroupDestroyed(ReferencePipeline):
    """close() destroys the caller's group."""

    def close(self) -> None:
        super().close()
        group = self.plan.ranks.pipeline_group
        if group is not None and self.modules and group in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(group)
