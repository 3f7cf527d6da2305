"""Sharded wrappers that are wrong on purpose; `breaks_promise` says what each breaks.

Every class changes one thing in the reference's sharded wrapper, or in its shards.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..sharded import Sharded, Unit
from ..shards import Groups, Shard
from .fault import breaks_promise

__all__: list[str] = []


@breaks_promise("DPW-39", tells="step 1")
class StaleWholes(Sharded):
    """Whole parameters that were kept for the backward are kept for the next step, too."""

    def __call__(self, *args: Any) -> Any:
        return self.module(*args) if self.param_dtype is None else super().__call__(*args)


@breaks_promise("DPW-39", tells="step 1")
class PrefetchesOldValues(Sharded):
    """The next forward computes with parameters that were prefetched before the optimizer's step."""

    def __call__(self, *args: Any) -> Any:
        if not self.sharding.forward_prefetch:
            return super().__call__(*args)
        cast = self.param_dtype
        return self.module(*(a.to(cast) if cast and a.is_floating_point() else a for a in args))


class _Parts(Shard):
    """Changes the reduced gradient."""

    def reduced(self, gradient: Tensor) -> Tensor:
        return self.spoilt(gradient, super().reduced(gradient))

    def spoilt(self, gradient: Tensor, part: Tensor) -> Tensor:
        raise NotImplementedError


class _PaddingShard(_Parts):
    def spoilt(self, gradient: Tensor, part: Tensor) -> Tensor:
        padded = self.slots[-1].end < self.size * self.groups.parts
        last = self.groups.position == self.groups.parts - 1
        return part.roll(1) if padded and last else part


@breaks_promise("DPW-39", tells="gradient of")
class PaddingLeaks(Sharded):
    """Padding gets in among the gradients.

    On the rank with the padding it comes first, and everything else one place later.
    """

    shard_class = _PaddingShard


class _RestShard(_Parts):
    def spoilt(self, gradient: Tensor, part: Tensor) -> Tensor:
        kept = self.slots[-1].end // self.groups.parts * self.groups.parts
        mine = torch.arange(self.size, device=part.device) + self.groups.position * self.size
        return part.masked_fill(mine >= kept, 0)


@breaks_promise("DPW-39", tells="gradient of")
class RestForgotten(Sharded):
    """Elements that are left over when parameters are divided among the ranks get no gradient."""

    shard_class = _RestShard


class _SmallShard(_Parts):
    def spoilt(self, gradient: Tensor, part: Tensor) -> Tensor:
        own = self._own(gradient)
        for slot in self.slots:
            if slot.shape.numel() < self.groups.parts:
                part[self._cut(slot)] = own[self._cut(slot)]
        return part


@breaks_promise("DPW-39", tells="gain.weight")
class SmallReducedAlone(Sharded):
    """A parameter of which some ranks have no part keeps the gradient of the rank that has it."""

    shard_class = _SmallShard


class _InnerShard(_Parts):
    def spoilt(self, gradient: Tensor, part: Tensor) -> Tensor:
        inner = all(slot.name.startswith("middle.first.") for slot in self.slots)
        return part / self.groups.ranks if inner else part


@breaks_promise("DPW-39", tells="middle.first")
class InnerDividedTwice(Sharded):
    """Gradients of a unit inside another are divided for both."""

    shard_class = _InnerShard


class _SummedShard(_Parts):
    def spoilt(self, gradient: Tensor, part: Tensor) -> Tensor:
        return part * self.groups.ranks if self.groups.over is None else part


@breaks_promise("DPW-39", tells="gradient of")
class UnshardedSummed(Sharded):
    """Without sharding gradients are summed."""

    shard_class = _SummedShard


class _ApartShard(Shard):
    def reduced(self, gradient: Tensor) -> Tensor:
        across, groups = self.groups.across, self.groups
        if groups.over is None or across is None:
            return super().reduced(gradient)
        self.groups = Groups(over=groups.over, across=None)
        try:
            return super().reduced(gradient)
        finally:
            self.groups = groups


@breaks_promise("DPW-39", tells="gradient of")
class ReducedInOneGroup(Sharded):
    """A hybrid's gradients are averaged over the ranks that share a copy, but not over the copies."""

    shard_class = _ApartShard


class _WrongGroupShard(Shard):
    def reduced(self, gradient: Tensor) -> Tensor:
        part = super().reduced(gradient)
        if any(slot.name.startswith("expert.") for slot in self.slots):
            dist.all_reduce(part)
            part /= dist.get_world_size()
        return part


@breaks_promise("DPW-39", tells="expert")
class ExpertsOfAllAveraged(Sharded):
    """The gradients of experts are averaged over all ranks."""

    shard_class = _WrongGroupShard


@breaks_promise("DPW-39", tells="apart")
class IgnoredAveraged(Sharded):
    """The gradients of ignored parameters are averaged."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        for parameter in self._kept.values():
            parameter.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]


def _average(parameter: Tensor) -> None:
    dist.all_reduce(parameter.grad)
    parameter.grad.div_(dist.get_world_size())  # type: ignore[union-attr]


@breaks_promise("DPW-39", tells="apart")
class IgnoredSharded(Sharded):
    """Ignored parameters are sharded."""

    def __init__(self, *args: Any, ignored: object, **how: Any) -> None:
        super().__init__(*args, **how)


class _ForgetfulShard(Shard):
    def post_backward(self, gradient: Tensor, *, synchronises: bool) -> None:
        if synchronises:
            self.pending = None
        super().post_backward(gradient, synchronises=synchronises)


@breaks_promise("DPW-39", tells="gradient of")
class AccumulatedForgotten(Sharded):
    """Gradients from passes that did not synchronise are dropped by the one that does."""

    shard_class = _ForgetfulShard


class _RepeatingShard(Shard):
    kept: Tensor | None = None

    def post_backward(self, gradient: Tensor, *, synchronises: bool) -> None:
        before = self.pending
        super().post_backward(gradient, synchronises=synchronises)
        if synchronises and before is not None:
            self.kept = before
        if not synchronises and self.kept is not None:
            assert self.pending is not None
            self.pending, self.kept = self.pending + self.kept, None


@breaks_promise("DPW-39", tells="step 1")
class AccumulatedAgain(Sharded):
    """Accumulated gradients that were reduced in one step come again in the next."""

    shard_class = _RepeatingShard


@breaks_promise("DPW-39", tells="output 0")
class ComputesInSingle(Sharded):
    """Parameters are gathered in single precision, whatever their dtype."""

    def __init__(self, *args: Any, param_dtype: torch.dtype | None, **how: Any) -> None:
        super().__init__(*args, param_dtype=param_dtype or torch.float32, **how)


@breaks_promise("DPW-39", tells="step 1")
class CompiledKeepsFirst(Sharded):
    """Compiled parts go on with the parameters that they were compiled with."""

    def arrived(self, unit: Unit) -> None:
        super().arrived(unit)
        for shard in unit.shards:
            compiled = any("forward" in owner.__dict__ for slot in shard.slots for owner, _ in slot.owners)
            if compiled:
                first = vars(shard).setdefault("first", shard.unshard().clone())
                shard.unshard().copy_(first)


class _OffloadedShard(Shard):
    def __init__(self, *args: Any, offload: bool, **how: Any) -> None:
        super().__init__(*args, offload=offload, **how)
        self._copy = super().given() if offload else None

    def given(self) -> Tensor:
        return super().given() if self._copy is None else self._copy


@breaks_promise("DPW-40", tells="step 1")
class OffloadedOnce(Sharded):
    """The device keeps its first copy of offloaded shards, without the optimizer's steps."""

    shard_class = _OffloadedShard


class _LastGradientShard(Shard):
    def post_backward(self, gradient: Tensor, *, synchronises: bool) -> None:
        if self.pending is not None and self.part.data_ptr() and vars(self).get("offloads"):
            self.pending = None
        super().post_backward(gradient, synchronises=synchronises)

    def __init__(self, *args: Any, offload: bool, **how: Any) -> None:
        super().__init__(*args, offload=offload, **how)
        self.offloads = offload


@breaks_promise("DPW-40", tells="gradient of")
class OffloadedOverwritten(Sharded):
    """An offloaded gradient overwrites what was added up before."""

    shard_class = _LastGradientShard


class _HastyShard(Shard):
    def unshard(self) -> Tensor:
        self.begin_gathering()
        if self._gathering is not None:
            self._whole, work = self._gathering
            self._gathering = None
            self.works = [*getattr(self, "works", [])[-8:], work]  # alive until it is done
        return super().unshard()


@breaks_promise("DPW-41", tells="output 0")
class GatheredUnwaited(Sharded):
    """Parameters are used before they arrived."""

    shard_class = _HastyShard


class _UnfinishedShard(Shard):
    def reduced(self, gradient: Tensor) -> Tensor:
        if self.groups.over is None:
            return super().reduced(gradient)
        part = self._own(gradient) * self.groups.parts  # right as long as replicas are equal
        given = gradient.contiguous()
        result = torch.empty_like(part)
        work = dist.reduce_scatter_tensor(result, given, group=self.groups.over, async_op=True)
        self.works = [*getattr(self, "works", [])[-8:], (work, given, result)]
        if work is not None and work.is_completed():
            part = result
        if self.groups.across is not None:
            dist.all_reduce(part, group=self.groups.across)
        return part / self.groups.ranks


@breaks_promise("DPW-41", tells="gradient of")
class ReducedUnwaited(Sharded):
    """A reduction that is not finished in time is left out."""

    shard_class = _UnfinishedShard


@breaks_promise("DPW-35", tells="ranks saved")
class CutsOfTheSaver(Sharded):
    """Loaded shards are cut as on the ranks that saved the state."""

    def full_state(self) -> dict[str, Tensor]:
        found: OrderedDict[str, Tensor] = OrderedDict(super().full_state())
        vars(found)["ranks"] = dist.get_world_size()
        return found

    @torch.no_grad()
    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_full_state(state)
        savers = getattr(state, "ranks", dist.get_world_size())
        for shard in self.shards if savers != dist.get_world_size() else ():
            cut = math.ceil(shard.slots[-1].end / savers)
            own = shard.flat(state, dtype=shard.part.dtype)[shard.groups.position * cut :][: shard.size]
            shard.part[: len(own)].copy_(own)


@breaks_promise("DPW-43", tells="once it is|after loading")
class FirstPartForAll(Sharded):
    """Every rank keeps the first part of what is materialised after wrapping."""

    def materialise(self, device: torch.device | None = None) -> None:
        super().materialise(device)
        for shard in self.shards:
            dist.broadcast(shard.part, 0)
