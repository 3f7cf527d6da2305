"""Batches whose tensors are `DTensor`s: of a batch that all ranks of a stage have, each is given its part."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from pipeconform.adapter import Batch, HeldBatch
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.stage_wrapping import axis_of_parts, placed, placement_of_held

__all__ = ["placed_batch"]


def placed_batch(batch: Batch, tensor: TensorParallel, mesh: DeviceMesh) -> Batch:
    """The batch with its arguments and targets placed as the case says.

    Where samples are cut, those of microbatch k are the k-th parts of what the ranks have: the whole tensor has its
    samples in another order than the batch, rank by rank.
    """
    assert tensor.batch
    axis, held = axis_of_parts(mesh), tensor.batch
    num, m = axis.size(), batch.num_microbatches

    def given(value: Tensor, how: HeldBatch) -> DTensor:
        return placed(value, axis, placement_of_held(how))

    def by_ranks(value: Tensor) -> Tensor:
        if held != "samples":
            return value
        by_microbatch: Tensor = value.unflatten(0, (m, num, -1))  # type: ignore[no-untyped-call]
        return by_microbatch.transpose(0, 1).flatten(0, 2)

    fewer = batch.target.ndim < batch.args[0].ndim  # classes have no width
    target: HeldBatch = "whole" if tensor.target == "whole" or (held == "width" and fewer) else held
    parts = tuple(
        replace(part, args=tuple(given(arg, held) for arg in part.args), target=given(part.target, target))
        for part in batch.microbatches
    )
    return replace(
        batch,
        args=tuple(given(by_ranks(arg), held) for arg in batch.args),
        target=given(by_ranks(batch.target), target),
        microbatches=parts,
    )
