"""Checks that a batch looks like the batches before it, on every rank, before anything is sent, and merges gradients.

Every rank has a batch of the same shapes (decoys, if it does not consume it), or a source of as many microbatches, so
all ranks refuse alike and none waits. The first step's arguments are the expected ones; sizes in the batch dimension
may change.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Microbatch, Mode

from .metadata import TensorMeta, same_sizes
from .microbatches import batch_size_of, merge_gradients, parts_by, sizes_of, split
from .placed import parts_in


class BatchCheck:
    """Remembers the arguments of the first step."""

    def __init__(self) -> None:
        self._first: tuple[TensorMeta, ...] | None = None

    def check(self, batch: Batch) -> None:
        """Compare with the first batch, which is remembered.

        Raises:
            TypeError: An argument is no tensor.
            ValueError: There are more or fewer arguments, or one of another dtype or shape; or the batch cannot be
                split as asked.
        """
        if batch.source is not None:
            for part in batch.microbatches:
                self._compare(part.args, batch_dim=batch.batch_dim)
            return
        self._compare(batch.args, batch_dim=batch.batch_dim)
        kwargs_in(batch, sizes=sizes_in(batch))  # refuses arguments that do not fit their rule

    def _compare(self, args: Sequence[Any], *, batch_dim: int) -> None:
        now = tuple(_meta(position, value) for position, value in enumerate(args))
        was = self._first
        if was is not None and len(was) != len(now):
            raise ValueError(
                f"the first stage is given {len(now)} arguments; expected {len(was)}, as in the first step"
            )
        for position, (one, first) in enumerate(zip(now, was or now, strict=True)):
            if one.dtype != first.dtype or not same_sizes(one, first, batch_dim=batch_dim):
                what = "dtype" if one.dtype != first.dtype else "shape"
                raise ValueError(
                    f"argument {position} of stage 0 has another {what} than in the first step: "
                    f"expected {first}, got {one}"
                )
        self._first = self._first or now


def require_gradients(mode: Mode) -> None:
    """Refuse a training step with gradients switched off.

    Raises:
        RuntimeError: It is one.
    """
    if mode is Mode.TRAIN and not torch.is_grad_enabled():
        raise RuntimeError(
            "a training step needs gradients, which torch.no_grad() or torch.inference_mode() switched off"
        )


def taken(batch: Batch) -> Batch:
    """The batch with the microbatches of its step, which are taken from its source; every rank takes them from its own.

    Raises:
        ValueError: The source has fewer left.
    """
    assert batch.source is not None
    found = tuple(itertools.islice(batch.source, batch.num_microbatches))
    if len(found) < batch.num_microbatches:
        raise ValueError(
            f"the source of the batch ended after {len(found)} of {batch.num_microbatches} microbatches"
        )
    return replace(batch, microbatches=found)


def parts_of(batch: Batch) -> Sequence[Microbatch]:
    """The microbatches of a step.

    Raises:
        ValueError: The batch cannot be split as asked.
    """
    if batch.source is not None:
        return batch.microbatches
    sizes = sizes_in(batch)
    parts = parts_in(batch.args, batch.target, batch_dim=batch.batch_dim)
    args, targets = (
        split(one, sizes=sizes, batch_dim=batch.batch_dim, parts=parts) for one in (batch.args, batch.target)
    )
    kwargs = kwargs_in(batch, sizes=sizes)
    return [
        Microbatch(args=args[k], kwargs={s: own[k] for s, own in kwargs.items()}, target=targets[k])
        for k in range(len(sizes))
    ]


def sizes_in(batch: Batch) -> tuple[int, ...]:
    """Samples per microbatch; the same on every rank, because decoys have the shapes of what they replace.

    Raises:
        ValueError: Tensors disagree about the number of samples, or it cannot be split as asked.
    """
    usual = {
        s: {name: value for name, value in own.items() if name not in batch.kwarg_rules.get(s, {})}
        for s, own in batch.kwargs.items()
    }
    values = {"args": batch.args, "kwargs": usual, "target": batch.target}
    found = {name: batch_size_of(tree, batch_dim=batch.batch_dim, name=name) for name, tree in values.items()}
    known = {size for size in found.values() if size is not None}
    if len(known) != 1:
        raise ValueError(f"the batch size is not clear: {found}")
    # where samples are cut over ranks, every rank splits its own
    parts = parts_in(batch.args, batch.target, batch_dim=batch.batch_dim)
    own = sizes_of(known.pop() // parts, num_microbatches=batch.num_microbatches)
    return tuple(parts * size for size in own)


def kwargs_in(batch: Batch, *, sizes: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Per stage that has any, the keyword arguments of each microbatch.

    Raises:
        ValueError: One does not fit its rule.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for s, own in batch.kwargs.items():
        rules = batch.kwarg_rules.get(s, {})
        columns = {
            name: parts_by(
                rules.get(name),
                value,
                name=f"keyword argument {name!r} of stage {s}",
                sizes=sizes,
                batch_dim=batch.batch_dim,
            )
            for name, value in own.items()
        }
        if columns:
            found[s] = [{name: parts[k] for name, parts in columns.items()} for k in range(len(sizes))]
    return found


def _meta(position: int, value: Any) -> TensorMeta:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"argument {position} of stage 0 is {type(value).__name__} {value!r:.60}; expected a tensor"
        )
    return TensorMeta(dtype=value.dtype, shape=tuple(value.shape), requires_grad=value.requires_grad)


def input_gradients(
    batch: Batch, gradients: Mapping[int, Sequence[Tensor | None]]
) -> tuple[Tensor | None, ...]:
    """The gradient of every positional input, also accumulated where autograd would put it.

    `gradients` has, for every microbatch, those of its inputs.
    """
    sizes = sizes_in(batch)
    found: list[Tensor | None] = []
    for position, arg in enumerate(batch.args):
        if not isinstance(arg, Tensor) or not arg.requires_grad:
            found.append(None)
            continue
        parts = [gradients[k][position] for k in range(batch.num_microbatches)]
        found.append(merge_gradients(parts, like=arg, sizes=sizes, batch_dim=batch.batch_dim))
    reached = [
        (arg, gradient) for arg, gradient in zip(batch.args, found, strict=True) if gradient is not None
    ]
    if reached:
        torch.autograd.backward([arg for arg, _ in reached], [gradient for _, gradient in reached])
    return tuple(found)
