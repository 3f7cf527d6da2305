"""Runs the model on the data of all replicas at once, for replicas that share statistics.

Microbatch k of the joint batch is the replicas' k-th microbatches, one after the other. The loss is the mean over the
replicas, so that gradients are what replicas have after averaging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from pipeconform.adapter import Batch, Microbatch
from pipeconform.observe.array import Array
from pipeconform.observe.observation import StepExpected, Structure

__all__ = ["parts_of", "taken_apart", "together"]


def together(batches: Sequence[Batch]) -> Batch:
    """The joint batch; gradients of its inputs are not recorded, so the first replica's inputs stand for all."""
    first, dim = batches[0], batches[0].batch_dim
    if len(batches) == 1:
        return first

    def joined(values: Sequence[Any]) -> Any:
        return torch.cat(list(values), dim) if isinstance(values[0], Tensor) else values[0]

    joint = [
        Microbatch(
            args=tuple(joined(column) for column in zip(*(one.args for one in each), strict=True)),
            kwargs=each[0].kwargs,
            target=joined([one.target for one in each]),
        )
        for each in zip(*(batch.microbatches for batch in batches), strict=True)
    ]
    return Batch(
        args=first.args,
        kwargs=first.kwargs,
        target=first.target,
        loss_kwargs=first.loss_kwargs,
        batch_dim=dim,
        num_microbatches=first.num_microbatches,
        microbatches=tuple(joint),
        kwarg_rules=first.kwarg_rules,
    )


def parts_of(output: Any, target: Any, *, num: int, dim: int) -> Iterator[tuple[Any, Any]]:
    """Every replica's output and target."""
    if num == 1:
        return iter([(output, target)])
    return zip(output.chunk(num, dim), target.chunk(num, dim), strict=True)


def taken_apart(steps: Sequence[StepExpected], *, num: int, dim: int) -> list[list[StepExpected]]:
    """The reference of every replica, from the joint run: its own samples and losses, and everything else shared."""
    return [[_part(step, replica, num, dim) for step in steps] for replica in range(num)]


def _part(step: StepExpected, replica: int, num: int, dim: int) -> StepExpected:
    def own(array: Array) -> Array:
        return Array.of(array.tensor().chunk(num, dim)[replica])

    def rows(value: Structure) -> Structure:
        array = None if value.array is None else own(value.array)
        return structs.replace(value, array=array, items=tuple(map(rows, value.items)))

    return structs.replace(
        step,
        outputs=tuple(map(rows, step.outputs)),
        output_bounds=tuple(tuple(map(own, leaves)) for leaves in step.output_bounds),
        losses=step.losses[replica::num],
        loss_bounds=step.loss_bounds[replica::num],
        inputs=tuple(tuple(tuple(map(rows, one)) for one in stage) for stage in step.inputs),
        input_gradients=(),
    )
