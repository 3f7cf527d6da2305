"""Block masks of flex attention, one of documents for every sample or one window for all, and what they allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["allowed_by", "block_mask_of", "cut", "is_block_mask", "window"]

_BLOCK = 2
"""Tokens in a block: small, so that there are full, partial and empty blocks in short sequences."""


_Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _within_documents(numbers: Tensor) -> _Rule:
    """Tokens see what is not later in their own document.

    A closure, as users' rules are: engines look there for tensors. It keeps the documents for `cut`, too.
    """

    def rule(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (numbers[sample, query] == numbers[sample, key])

    vars(rule)["documents"] = numbers
    return rule


def _within_window(size: int) -> _Rule:
    """Tokens of all samples see themselves and the `size` tokens before."""

    def rule(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= size)

    return rule


def is_block_mask(value: object) -> bool:
    """Whether it is a block mask of torch's, without importing torch's attention where there is none."""
    kind = type(value)
    return kind.__name__ == "BlockMask" and kind.__module__ == "torch.nn.attention.flex_attention"


def block_mask_of(numbers: Tensor) -> BlockMask:
    """The block mask of samples whose tokens are in the documents `numbers`, ``[B, S]``."""
    samples, length = numbers.shape
    return _created(_within_documents(numbers), samples=samples, length=length, device=numbers.device)


def window(size: int, *, sequence: int, device: torch.device | str) -> BlockMask:
    """The block mask of a window, which has a single sample and is meant for all."""
    return _created(_within_window(size), samples=1, length=sequence, device=torch.device(device))


def cut(mask: Any, num_microbatches: int) -> list[Any]:
    """The block masks of the microbatches, each made anew; one for all samples is given to all."""
    numbers = vars(mask.mask_mod).get("documents")
    if numbers is None:
        return [mask] * num_microbatches
    return [block_mask_of(own) for own in numbers.tensor_split(num_microbatches)]


def allowed_by(mask: Any, *, samples: int, sequence: int) -> Tensor:
    """Which tokens attend to which, ``[B, 1, S, S]``: those that both the rule and the table of blocks allow.

    A kernel of flex attention asks the rule in partial blocks only, and skips blocks that are in no table.
    """
    ruled = _ruled(mask.mask_mod, samples=samples, length=sequence, device=mask.kv_num_blocks.device)
    blocks = mask.to_dense().bool()
    seen = blocks.repeat_interleave(_BLOCK, -2).repeat_interleave(_BLOCK, -1)[..., :sequence, :sequence]
    allowed: Tensor = ruled & seen
    return allowed


def _created(rule: _Rule, *, samples: int, length: int, device: torch.device) -> BlockMask:
    """The mask that ``create_block_mask`` returns, in a seventh of its time: it maps the rule over every index."""
    # few cases need it, and a rank imports all that it can before its first case
    from torch.nn.attention.flex_attention import BlockMask

    seen = _ruled(rule, samples=samples, length=length, device=device)
    missing, across = -length % _BLOCK, -(-length // _BLOCK)
    padded = functional.pad(seen, (0, missing, 0, missing))
    pairs = padded.reshape(samples, 1, across, _BLOCK, across, _BLOCK).sum((-1, -3))
    full = pairs == _BLOCK * _BLOCK
    return BlockMask.from_kv_blocks(
        *_table((pairs > 0) & ~full),
        *_table(full),
        _BLOCK,
        rule,
        (length, length),
    )


def _table(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys there are for each block of queries, and which, those that are there first."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()


def _ruled(rule: _Rule, *, samples: int, length: int, device: torch.device) -> Tensor:
    """What the rule allows, ``[B, 1, S, S]``."""
    sample = torch.arange(samples, device=device).reshape(-1, 1, 1, 1)
    head = torch.zeros((), dtype=torch.int64, device=device)
    token = torch.arange(length, device=device)
    allowed: Tensor = rule(sample, head, token.unsqueeze(-1), token)
    return allowed.expand(samples, 1, length, length)  # a rule may be the same for all samples
