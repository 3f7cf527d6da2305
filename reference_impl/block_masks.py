"""Block masks of flex attention, split with the batch.

A block mask has tables of blocks, with the samples in dimension 0, and a rule, ``mask_mod``, that is asked with the
number of a sample. A microbatch's mask has its own rows of the tables; its samples are numbered from 0, so that the
rule must be asked for later ones. A mask whose tables have one row is meant for all samples, and is given whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

__all__ = ["split_block_mask"]


def split_block_mask(mask: BlockMask, *, sizes: Sequence[int]) -> list[BlockMask]:
    """One mask per microbatch.

    Raises:
        ValueError: The mask is for another number of samples than the batch has.
    """
    samples = mask.kv_num_blocks.shape[0]
    if samples == 1:
        return [mask] * len(sizes)
    if samples != sum(sizes):
        raise ValueError(f"a block mask is for {samples} samples; the batch has {sum(sizes)}")
    return [_part(mask, start=sum(sizes[:k]), size=size) for k, size in enumerate(sizes)]


def _part(mask: BlockMask, *, start: int, size: int) -> BlockMask:
    def rows(table: Tensor | None) -> Tensor | None:
        return None if table is None else table.narrow(0, start, size)

    def later(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask.mask_mod(sample + start, head, query, key)

    return BlockMask.from_kv_blocks(
        mask.kv_num_blocks.narrow(0, start, size),
        mask.kv_indices.narrow(0, start, size),
        rows(mask.full_kv_num_blocks),
        rows(mask.full_kv_indices),
        BLOCK_SIZE=mask.BLOCK_SIZE,
        mask_mod=later,
        seq_lengths=mask.seq_lengths,
    )
