"""Faults of master weights and of the scale of the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pipeconform.adapter import Clipping, LossScaling

from ..adapter import ReferencePipeline
from ..masters import LossScale, Masters
from .fault import breaks

_WRONG = r"the parameter of [\w.]+ in stage \d is not (the reference|the float32 copy)"


class _RoundedMasters(Masters):
    def step(self) -> None:
        self.reload()
        super().step()


@breaks("TRN-23", tells=_WRONG)
class SteppedIn16Bits(ReferencePipeline):
    """The copies are made anew from the parameters for every update, so that what rounding took is lost."""

    def make_masters(self) -> Masters:
        return _RoundedMasters(self.own_parameters(), self.plan.optimizer)


class _OldMasters(Masters):
    def reload(self) -> None:
        pass


@breaks("TRN-23", tells=_WRONG)
class CopiesNotLoaded(ReferencePipeline):
    """A loaded state does not reach the copies: the next update overwrites it."""

    def make_masters(self) -> Masters:
        return _OldMasters(self.own_parameters(), self.plan.optimizer)


class _LateMasters(Masters):
    def step(self) -> None:
        before = {parameter: copy.detach().clone() for parameter, copy in self.copies.items()}
        super().step()
        with torch.no_grad():
            for parameter, copy in before.items():
                parameter.copy_(copy)


@breaks("TRN-23", tells=_WRONG)
class RoundedAStepLater(ReferencePipeline):
    """Parameters get the copies' values of the update before."""

    def make_masters(self) -> Masters:
        return _LateMasters(self.own_parameters(), self.plan.optimizer)


class _OwnOverflow(LossScale):
    def overflowed(self, gradients: Sequence[Tensor]) -> bool:
        return any(not bool(gradient.isfinite().all()) for gradient in gradients)


@breaks("TRN-24", tells=r"parameter of [\w.]+ in stage \d|scales the next losses by")
class OverflowKeptToItself(ReferencePipeline):
    """A rank skips the update if its own gradients overflow; the others step."""

    def make_scale(self, scaling: LossScaling) -> LossScale:
        return _OwnOverflow(scaling, None, self.plan.ranks.device)


@breaks("TRN-24", tells=r"parameter of [\w.]+ in stage \d|scales the next losses by")
class OverflowUnderAutocastKeptToItself(ReferencePipeline):
    """Under autocast every rank has a scaler of its own, which skips the update if its own gradients overflow."""

    def make_scale(self, scaling: LossScaling) -> LossScale:
        if self.plan.master_weights:
            return super().make_scale(scaling)
        return _OwnOverflow(scaling, None, self.plan.ranks.device)


class _OwnScale(LossScale):
    def allows(self, gradients: Sequence[Tensor]) -> bool:
        before, own = self.value, all(bool(one.isfinite().all()) for one in gradients)
        allowed = super().allows(gradients)
        if not allowed and own:
            self.value = before
        return allowed


@breaks("TRN-24", tells=r"parameter of [\w.]+ in stage \d|scales the next losses by")
class OwnScaleLowered(ReferencePipeline):
    """All ranks skip the update, but only those lower their scale whose own gradients overflowed."""

    def make_scale(self, scaling: LossScaling) -> LossScale:
        return _OwnScale(scaling, self.plan.ranks.pipeline_group, self.plan.ranks.device)


class _ZeroedScale(LossScale):
    def allows(self, gradients: Sequence[Tensor]) -> bool:
        if not super().allows(gradients):
            for gradient in gradients:
                gradient.copy_(torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0))
        return True


@breaks("TRN-24", tells=r"parameter of [\w.]+ in stage \d")
class InfiniteGradientsZeroed(ReferencePipeline):
    """Gradients that are not finite are taken for zero, and the update is made with the others."""

    def make_scale(self, scaling: LossScaling) -> LossScale:
        return _ZeroedScale(scaling, self.plan.ranks.pipeline_group, self.plan.ranks.device)


class _ScaledMasters(Masters):
    def take(self, *, scale: float = 1.0) -> None:
        super().take()


@breaks("TRN-24", tells=_WRONG)
class UpdatedWithTheScale(ReferencePipeline):
    """The optimizer gets gradients that are still scaled."""

    def make_masters(self) -> Masters:
        return _ScaledMasters(self.own_parameters(), self.plan.optimizer)


@breaks("TRN-27", tells=_WRONG)
class ClippedWithTheScale(ReferencePipeline):
    """Gradients are clipped by the norm that they have with the loss's scale in them."""

    def clip(self, clipping: Clipping) -> None:
        scale = self.loss_scale() or 1.0
        super().clip(Clipping(max_norm=clipping.max_norm / scale, norm_type=clipping.norm_type))


@breaks("TRN-27", tells=_WRONG)
class CopiesNotClipped(ReferencePipeline):
    """The parameters' gradients are clipped after the copies have taken them over."""

    def clip(self, clipping: Clipping) -> None:
        if self.masters is None:
            super().clip(clipping)


@breaks("TRN-27", tells=_WRONG)
class ClippedIn16Bits(ReferencePipeline):
    """The parameters' gradients are clipped, and rounded, before the copies take them over."""

    def clip(self, clipping: Clipping) -> None:
        if self.masters is None:
            super().clip(clipping)
            return
        copies, self.masters = self.masters, None
        scale = self.loss_scale() or 1.0
        super().clip(clipping)
        copies.take(scale=scale)
        self.masters = copies


class _ClippedMasters(Masters):
    limit = math.inf

    def take(self, *, scale: float = 1.0) -> None:
        gradients = [one.grad.norm() for one in self.copies if one.grad is not None]
        norm = float(torch.stack(gradients).norm()) / scale if gradients else 0.0
        super().take(scale=scale * max(1.0, norm / self.limit))


@breaks("TRN-27", tells=_WRONG)
class CopiesClippedByOwnNorm(ReferencePipeline):
    """Every rank clips its copies' gradients by the norm of its own stages."""

    def make_masters(self) -> Masters:
        return _ClippedMasters(self.own_parameters(), self.plan.optimizer)

    def clip(self, clipping: Clipping) -> None:
        if isinstance(self.masters, _ClippedMasters) and clipping.norm_type == 2.0:
            self.masters.limit = clipping.max_norm
        else:
            super().clip(clipping)
