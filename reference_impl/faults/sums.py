"""Faults of gradients that are added up in float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferencePipeline
from ..float32_sums import Float32Sums
from .fault import breaks

_ROUNDED = r"the gradient of blocks\.\d\.weight in stage \d is [\d.e+]+; added up in float32 it is"


class _Rounding(Float32Sums):
    def added(self, total: Tensor | None, gradient: Tensor) -> Tensor:
        return super().added(total, gradient).bfloat16().float()


@breaks("TRN-26", tells=_ROUNDED, source="https://github.com/deepspeedai/DeepSpeed/issues/2768")
class AddedUpIn16Bits(ReferencePipeline):
    """Gradients are added up in bfloat16, and converted to float32 afterwards."""

    def make_sums(self) -> Float32Sums:
        return _Rounding(self.own_parameters())


class _RoundedOnce(Float32Sums):
    @torch.no_grad()
    def round(self) -> None:
        for parameter, total in self._sums.items():
            self._sums[parameter] = total.bfloat16().float()


@breaks("TRN-26", tells=_ROUNDED)
class RoundedBetweenSteps(ReferencePipeline):
    """The sum of a step's microbatches is in float32, but the next step begins with it in bfloat16."""

    def make_sums(self) -> Float32Sums:
        return _RoundedOnce(self.own_parameters())

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if isinstance(self.sums, _RoundedOnce):
            self.sums.round()
        return super().run(mode, batch)


@breaks("TRN-26", tells=r"the gradient of blocks\.\d\.weight in stage \d is bfloat16")
class SumsReturnedIn16Bits(ReferencePipeline):
    """Gradients are added up in float32, and rounded to bfloat16 where the optimizer finds them."""

    def gradients(self) -> Mapping[int, Mapping[str, Tensor | None]]:
        found = super().gradients()
        if self.sums is None:
            return found
        return {
            s: {name: None if one is None else one.bfloat16() for name, one in own.items()}
            for s, own in found.items()
        }


class _ReducedIn16Bits(Float32Sums):
    def reduce(self, total: Tensor, group: dist.ProcessGroup) -> None:
        rounded = total.bfloat16()
        super().reduce(rounded, group)
        total.copy_(rounded)


@breaks("DPC-10", tells=_ROUNDED)
class SumsReducedIn16Bits(ReferencePipeline):
    """Each replica adds up in float32, and the sums are rounded to bfloat16 to be averaged."""

    def make_sums(self) -> Float32Sums:
        return _ReducedIn16Bits(self.own_parameters())
