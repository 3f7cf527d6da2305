"""Faults that linear maps do not show: what decoder layers need besides parameters and the main stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from pipeconform.adapter import Batch, Mode, Plan

from ..adapter import ReferencePipeline
from ..block_masks import split_block_mask
from ..runtime import Work
from ..stage import Stage
from .fault import breaks

_WRONG = r"in stage \d is not the reference's|output of microbatch|loss of microbatch"


@breaks("FWD-29", tells=_WRONG, source="https://github.com/pytorch/torchtitan/issues/316")
class TablesOutsideOfState(ReferencePipeline):
    """Stages are filled from a state, so that buffers which are no part of it are empty."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        for module in self.modules.values():
            kept = module.state_dict()
            for name, buffer in module.named_buffers():
                if name not in kept:
                    buffer.zero_()  # memory that was never written may hold anything, the right values too


class _ChangedKwargs(ReferencePipeline):
    """Hands over other keyword arguments."""

    def changed(self, stage: int, value: Any, *, first: Any, whole: Any) -> Any:
        """What a stage gets instead of a value, which is `first` in the first microbatch, and `whole` in the batch."""
        raise NotImplementedError

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)

        return replace(
            work,
            kwargs={
                s: [
                    {
                        name: self.changed(s, value, first=rows[0][name], whole=batch.kwargs[s][name])
                        for name, value in row.items()
                    }
                    for row in rows
                ]
                for s, rows in work.kwargs.items()
            },
        )


def _is_told(value: Any) -> bool:
    """Whether it is a tensor of integers or truth values."""
    return isinstance(value, Tensor) and not value.is_floating_point()


@breaks("FWD-29", tells=_WRONG, source="https://github.com/pytorch/torchtitan/issues/1723")
class MaskOfTheFirst(_ChangedKwargs):
    """Masks and positions are those of the first microbatch, for all of them."""

    def changed(self, stage: int, value: Any, *, first: Any, whole: Any) -> Any:
        return first if _is_told(value) else value


@breaks("FWD-29", tells=_WRONG, source="https://github.com/NVIDIA/Megatron-LM/issues/752")
class MasksForFirstOnly(_ChangedKwargs):
    """Stages after the first get masks that hide nothing."""

    def changed(self, stage: int, value: Any, *, first: Any, whole: Any) -> Any:
        hides = stage and isinstance(value, Tensor) and value.dtype == torch.bool
        return torch.ones_like(value) if hides else value


@breaks(
    "FWD-29",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/deepspeedai/DeepSpeed/issues/5701",
)
class KwargsCast(Stage):
    """Keyword arguments are cast to the dtype of the stage's parameters, as its inputs are."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        dtype = next(self.module.parameters()).dtype
        cast = {name: one.to(dtype) if isinstance(one, Tensor) else one for name, one in kwargs.items()}
        return super().forward(microbatch, inputs, cast, differentiate=differentiate, boundary=boundary)


class _OtherBlockMasks(_ChangedKwargs):
    """Hands over other block masks."""

    def other(self, own: BlockMask, whole: BlockMask) -> BlockMask:
        """What a microbatch gets instead of `own`, its part of the `whole` mask."""
        raise NotImplementedError

    def changed(self, stage: int, value: Any, *, first: Any, whole: Any) -> Any:
        return self.other(value, whole) if isinstance(value, BlockMask) else value


@breaks("FWD-30", tells=_WRONG, source="https://github.com/pytorch/torchtitan/issues/1723")
class BlockMaskGivenWhole(_OtherBlockMasks):
    """Every microbatch gets the rows of the batch's first samples."""

    def other(self, own: BlockMask, whole: BlockMask) -> BlockMask:
        samples, every = own.kv_num_blocks.shape[0], whole.kv_num_blocks.shape[0]
        return whole if samples == every else split_block_mask(whole, sizes=(samples, every - samples))[0]


@breaks("FWD-30", tells=_WRONG, source="https://github.com/pytorch/pytorch/pull/164111")
class BlockMaskRuleNotShifted(_OtherBlockMasks):
    """The tables of a block mask are split, and its rule is asked for the first samples."""

    def other(self, own: BlockMask, whole: BlockMask) -> BlockMask:
        return BlockMask.from_kv_blocks(
            own.kv_num_blocks,
            own.kv_indices,
            own.full_kv_num_blocks,
            own.full_kv_indices,
            BLOCK_SIZE=own.BLOCK_SIZE,
            mask_mod=whole.mask_mod,
            seq_lengths=own.seq_lengths,
        )


@breaks("FWD-30", tells=_WRONG)
class BlockMaskWithoutFullBlocks(_OtherBlockMasks):
    """The table of full blocks is lost, so that only partial blocks are attended to."""

    def other(self, own: BlockMask, whole: BlockMask) -> BlockMask:
        return BlockMask.from_kv_blocks(
            own.kv_num_blocks,
            own.kv_indices,
            BLOCK_SIZE=own.BLOCK_SIZE,
            mask_mod=own.mask_mod,
            seq_lengths=own.seq_lengths,
        )
