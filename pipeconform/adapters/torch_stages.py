"""torch's pipeline stages driven by hand, in the way of torch's own schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from pipeconform.adapter import Batch, Loss, StageOperations
from pipeconform.adapters import torch_release

__all__ = ["TorchStage", "open_stages"]


class TorchStage:
    """One ``PipelineStage`` within a training step."""

    def __init__(
        self, stage: Any, batch: Batch, *, neighbours: Mapping[int, Any], loss: Loss, scale_grads: bool
    ) -> None:
        self._stage, self._batch, self._loss = stage, batch, loss
        self._before = neighbours.get(stage.stage_index - 1)
        self._after = neighbours.get(stage.stage_index + 1)
        self._divisor = batch.num_microbatches if scale_grads else 1
        self._losses: dict[int, torch.Tensor] = {}
        self._sent: list[Any] = []

    def receive_forward(self, microbatch: int) -> None:
        self._receive(self._stage.get_fwd_recv_ops(microbatch))

    def forward(self, microbatch: int) -> None:
        stage, micro = self._stage, self._batch.microbatches
        # torch must refuse a microbatch that does not exist
        args = micro[microbatch].args if stage.is_first and microbatch < len(micro) else ()
        kwargs = micro[microbatch].kwargs.get(stage.stage_index, {}) if microbatch < len(micro) else {}
        output = stage.forward_one_chunk(microbatch, args, dict(kwargs))
        if stage.is_last:
            target = micro[microbatch].target
            self._losses[microbatch] = self._loss.function(output, target, **self._batch.loss_kwargs)
        elif self._after is not None:
            self._after.set_local_fwd_input(output, microbatch)

    def send_forward(self, microbatch: int) -> None:
        self._send(self._stage.get_fwd_send_ops(microbatch))

    def receive_backward(self, microbatch: int) -> None:
        self._receive(self._stage.get_bwd_recv_ops(microbatch))

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        stage = self._stage
        loss = self._losses.pop(microbatch, None)
        stage.backward_one_chunk(microbatch, loss=loss, full_backward=full)
        if self._before is not None:
            self._before.set_local_bwd_input(stage.get_local_bwd_output(microbatch), microbatch)

    def backward_weight(self, microbatch: int) -> None:
        self._stage.backward_weight_one_chunk(microbatch)

    def send_backward(self, microbatch: int) -> None:
        self._send(self._stage.get_bwd_send_ops(microbatch))

    def finish(self) -> None:
        while self._sent:
            self._sent.pop().wait()
        self._losses.clear()
        torch_release.finish_step(self._stage, self._divisor)
        self._stage.clear_runtime_states()

    def _receive(self, operations: list[dist.P2POp]) -> None:
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    def _send(self, operations: list[dist.P2POp]) -> None:
        self._sent += dist.batch_isend_irecv(operations) if operations else []


def open_stages(
    stages: Mapping[int, Any],
    batch: Batch,
    *,
    initialise: Callable[..., None],
    loss: Loss,
    scale_grads: bool,
) -> Mapping[int, StageOperations]:
    """The operations of this rank's stages for one training step.

    `initialise` is the schedule's own method: ranks exchange shapes in it, before the first step only.
    """
    first = batch.microbatches[0]
    kwargs = {name: value for s in stages for name, value in first.kwargs.get(s, {}).items()}
    for stage in stages.values():
        stage.has_backward = True
        stage.clear_runtime_states()
    torch_release.taken(
        initialise, first.args if 0 in stages else (), kwargs, first.target, dict(batch.loss_kwargs)
    )
    return {
        s: TorchStage(stage, batch, neighbours=stages, loss=loss, scale_grads=scale_grads)
        for s, stage in stages.items()
    }
