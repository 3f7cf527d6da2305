"""From a batch to microbatches and back.

A batch of B samples becomes m microbatches as ``torch.tensor_split`` cuts it: sizes differ by at most
one, larger ones first. Tensors are cut along the batch dimension as *views* (nothing is copied); anything
else is given to every microbatch unchanged. Outputs are put together again in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import BlockMask

from pipeconform.adapter import Along, CustomMerge, MergeRule, SplitRule, Whole

from . import placed
from .block_masks import split_block_mask
from .containers import combine, leaves_of, map_leaves


def sizes_of(batch_size: int, *, num_microbatches: int) -> tuple[int, ...]:
    """The number of samples in each microbatch.

    Raises:
        ValueError: There is no microbatch, or fewer samples than microbatches.
    """
    if num_microbatches < 1:
        raise ValueError(f"a batch needs at least one microbatch, got {num_microbatches}")
    if batch_size < num_microbatches:
        raise ValueError(
            f"a batch of {batch_size} samples cannot be split into {num_microbatches} microbatches: "
            f"each needs at least one sample"
        )
    size, extra = divmod(batch_size, num_microbatches)
    return tuple(size + 1 if k < extra else size for k in range(num_microbatches))


def batch_size_of(tree: Any, *, batch_dim: int, name: str) -> int | None:
    """The number of samples in the tensors of `tree`; None if it holds no tensor.

    `name` is what the error calls the value.

    Raises:
        ValueError: A tensor lacks the batch dimension, or two tensors disagree about its size.
    """
    sizes: set[int] = set()
    for leaf in leaves_of(tree):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.ndim <= batch_dim:
            raise ValueError(
                f"{name} has a tensor of shape {tuple(leaf.shape)}, which has no batch dimension {batch_dim}"
            )
        sizes.add(leaf.shape[batch_dim])
    if len(sizes) > 1:
        raise ValueError(f"{name} has tensors of different batch sizes: {sorted(sizes)} in dim {batch_dim}")
    return next(iter(sizes), None)


def split(tree: Any, *, sizes: Sequence[int], batch_dim: int, parts: int = 1) -> list[Any]:
    """One tree per microbatch; tensors are views of the batch's, other leaves are repeated.

    `parts` is the number of ranks over which the samples of the batch are cut, see `placed.parts_in`.
    """

    def part(start: int, size: int) -> Any:
        def cut(leaf: Any) -> Any:
            if isinstance(leaf, DTensor):
                return placed.part_of(leaf, start, size, batch_dim=batch_dim, parts=parts)
            return leaf.narrow(batch_dim, start, size) if isinstance(leaf, Tensor) else leaf

        return map_leaves(cut, tree)

    return [part(sum(sizes[:k]), size) for k, size in enumerate(sizes)]


def parts_by(
    rule: SplitRule | None, value: Any, *, name: str, sizes: Sequence[int], batch_dim: int
) -> list[Any]:
    """One part of a keyword argument per microbatch; without a rule as `split` does it.

    Raises:
        ValueError: The value does not fit its rule; the message begins with `name`.
    """
    match rule:
        case None if isinstance(value, BlockMask):
            return list(split_block_mask(value, sizes=sizes))
        case None:
            return split(value, sizes=sizes, batch_dim=batch_dim)
        case Whole():
            return [value] * len(sizes)
        case Along(dim):
            found = batch_size_of(value, batch_dim=dim, name=name)
            if found != sum(sizes):
                raise ValueError(
                    f"{name} has {found} entries in dimension {dim}, where it is to be split; "
                    f"the batch has {sum(sizes)} samples"
                )
            return split(value, sizes=sizes, batch_dim=dim)
    parts = list(rule.function(value, sizes))
    if len(parts) != len(sizes):
        raise ValueError(
            f"{name} was split into {len(parts)} parts by its own function; expected {len(sizes)}"
        )
    return parts


def merge(trees: Sequence[Any], *, batch_dim: int, rules: Sequence[MergeRule | None] = ()) -> Any:
    """The batch's output from the microbatches' outputs, in batch order, containers kept.

    Tensors are concatenated along the batch dimension. 0-d tensors (a loss among the outputs, say) have
    none: they become one tensor of m elements. Other leaves must be equal in all microbatches and appear
    once. `rules` has one entry per leaf, if any is merged in another way.

    Raises:
        ValueError: The outputs have different containers, a tensor lacks the batch dimension, or a leaf
            that is no tensor differs between microbatches; or there are not as many leaves as rules, or a value
            that is to appear once is not the same in all microbatches.
    """
    count = len(leaves_of(trees[0]))
    if rules and len(rules) != count:
        raise ValueError(
            f"the last stage returns {count} values; the plan has {len(rules)} rules to merge them"
        )
    left = iter(rules)

    def join(column: Sequence[Any]) -> Any:
        match next(left, None):
            case None:
                return join_batches(column)
            case Along(dim):
                return torch.cat(list(column), dim=dim)
            case Whole():
                if any(not _equal(value, column[0]) for value in column):
                    raise ValueError(f"an output that is to appear once differs: {list(column)!r:.200}")
                return column[0]
            case CustomMerge(function):
                return functools.reduce(function, column)

    def join_batches(column: Sequence[Any]) -> Any:
        if all(isinstance(value, Tensor) for value in column):
            if all(value.ndim == 0 for value in column):
                return torch.stack(list(column))
            if any(value.ndim <= batch_dim for value in column):
                shapes = ", ".join(str(tuple(value.shape)) for value in column)
                raise ValueError(
                    f"outputs of shapes {shapes} cannot be merged along batch dimension {batch_dim}"
                )
            if all(isinstance(value, DTensor) for value in column):
                return placed.joined(column, batch_dim=batch_dim)
            return torch.cat(list(column), dim=batch_dim)
        if any(isinstance(value, Tensor) for value in column) or any(value != column[0] for value in column):
            raise ValueError(
                f"outputs that are no tensors differ between microbatches: {list(column)!r:.200}"
            )
        return column[0]

    return combine(join, trees)


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other


def merge_gradients(
    gradients: Sequence[Tensor | None], *, like: Tensor, sizes: Sequence[int], batch_dim: int
) -> Tensor | None:
    """The gradient of a batch's input from those of its microbatches.

    A microbatch without a gradient contributes zeros; if none has one, neither has the batch.
    """
    if all(gradient is None for gradient in gradients):
        return None
    return torch.cat(list(_filled(gradients, like=like, sizes=sizes, batch_dim=batch_dim)), dim=batch_dim)


def _filled(
    gradients: Sequence[Tensor | None], *, like: Tensor, sizes: Sequence[int], batch_dim: int
) -> Iterator[Tensor]:
    for gradient, size in zip(gradients, sizes, strict=True):
        if gradient is not None:
            yield gradient
        else:
            yield like.new_zeros((*like.shape[:batch_dim], size, *like.shape[batch_dim + 1 :]))
