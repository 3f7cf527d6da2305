"""Parameters side by side in one flat tensor, of which every rank keeps a part.

In a group of S ranks a shard is ``ceil(n / S)`` of the n elements, the last ones filled up with zeros. Gathering the
whole and reducing its gradient are the two halves of one autograd function, so a backward pass that reaches the
whole parameters leaves mean gradients at the parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work

__all__ = ["Groups", "Shard", "Slot"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of sharing ranks: `over` has the parts of one copy, `across` the same part of every copy. None: alone."""

    over: ProcessGroup | None
    across: ProcessGroup | None

    @property
    def parts(self) -> int:
        """The number of parts of a copy."""
        return 1 if self.over is None else self.over.size()

    @property
    def position(self) -> int:
        """The part that this rank has."""
        return 0 if self.over is None else self.over.rank()

    @property
    def ranks(self) -> int:
        """The number of ranks over which gradients are averaged."""
        return self.parts * (1 if self.across is None else self.across.size())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """One parameter's place in the flat tensor."""

    name: str
    """The first of its names in the whole module."""
    owners: tuple[tuple[nn.Module, str], ...]
    """The modules that have it, with the attribute's name; several for a shared parameter."""
    shape: torch.Size
    begin: int

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.begin + self.shape.numel()


class Shard:
    """This rank's part of some parameters of one dtype, all of them trained or none.

    `masters` are what the optimizer gets, in memory of `part`: a flat parameter for each slot, empty if this rank
    has nothing of it, or one for all of them.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        owners: Mapping[str, tuple[tuple[nn.Module, str], ...]],
        groups: Groups,
        *,
        one_by_one: bool,
        param_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        offload: bool,
    ) -> None:
        first = next(iter(parameters.values()))
        self.groups, self.trained = groups, first.requires_grad
        self.param_dtype = first.dtype if param_dtype is None else param_dtype
        self.reduce_dtype = self.param_dtype if reduce_dtype is None else reduce_dtype
        self.device = first.device
        self.slots: list[Slot] = []
        for name, parameter in parameters.items():
            begin = self.slots[-1].end if self.slots else 0
            self.slots.append(Slot(name=name, owners=owners[name], shape=parameter.shape, begin=begin))
        self.size = math.ceil(self.slots[-1].end / groups.parts)
        whole = self.flat({name: p.detach() for name, p in parameters.items()}, dtype=first.dtype)
        self.part = self._own(whole).to("cpu" if offload else self.device).clone()
        cuts = [self._cut(slot) for slot in self.slots] if one_by_one else [slice(0, self.size)]
        self.masters = {cut_name: self._master(cut) for cut_name, cut in zip(parameters, cuts, strict=False)}
        self._cuts = dict(zip(self.masters, cuts, strict=True))
        self.pending: Tensor | None = None
        """The sum of passes that did not synchronise: whole, of this rank alone."""
        self._whole: Tensor | None = None
        self._gathering: tuple[Tensor, Work] | None = None

    def flat(self, values: Mapping[str, Tensor], *, dtype: torch.dtype) -> Tensor:
        """Whole parameters side by side, with the padding."""
        whole = torch.zeros(self.size * self.groups.parts, dtype=dtype, device=self.device)
        for slot in self.slots:
            whole[slot.begin : slot.end].copy_(values[slot.name].reshape(-1))
        return whole

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Keep this rank's part of new values for whole parameters."""
        self.part.copy_(self._own(self.flat(values, dtype=self.part.dtype)))

    def _own(self, whole: Tensor) -> Tensor:
        return whole[self.groups.position * self.size : (self.groups.position + 1) * self.size]

    def _cut(self, slot: Slot) -> slice:
        """A slot's place in this rank's part."""
        first = self.groups.position * self.size
        begin, end = (min(max(place - first, 0), self.size) for place in (slot.begin, slot.end))
        return slice(begin, end)

    def _master(self, cut: slice) -> nn.Parameter:
        return nn.Parameter(self.part[cut], requires_grad=self.trained)

    # ------------------------------------------------------------------ gathering

    def begin_gathering(self) -> None:
        """Request the whole, and go on; does nothing if it is there or requested."""
        if self._whole is None and self._gathering is None and self.groups.over is not None:
            whole = torch.empty(self.size * self.groups.parts, dtype=self.param_dtype, device=self.device)
            work = dist.all_gather_into_tensor(whole, self.given(), group=self.groups.over, async_op=True)
            self._gathering = (whole, work)

    def given(self) -> Tensor:
        """This rank's part, on the device and in the dtype of the computation."""
        return self.part.to(self.device, self.param_dtype)

    def unshard(self) -> Tensor:
        """The whole, flat, in the dtype of the computation; gathered unless it is there."""
        self.begin_gathering()
        if self._gathering is not None:
            self._whole, work = self._gathering
            self._gathering = None
            work.wait()
        if self._whole is None:
            self._whole = self.given().clone()
        return self._whole

    def reshard(self) -> None:
        """Forget the whole; a gathering under way is waited for, and forgotten, too."""
        if self._gathering is not None:
            self._gathering[1].wait()
        self._whole = self._gathering = None

    def views(self, *, synchronises: bool, done: Callable[[Shard], None]) -> Iterator[tuple[Slot, Tensor]]:
        """The whole parameters; their gradients are reduced where they come together, and ``done(self)`` is called."""
        whole = self.unshard()
        if self.trained and torch.is_grad_enabled():
            anchor = torch.empty(0, requires_grad=True)
            flat: Tensor = _Whole.apply(anchor, whole, self, synchronises, done)  # type: ignore[no-untyped-call]
        else:
            flat = whole.detach()
        for slot in self.slots:
            yield slot, flat[slot.begin : slot.end].view(slot.shape)

    # ------------------------------------------------------------------ gradients

    def post_backward(self, gradient: Tensor, *, synchronises: bool) -> None:
        """Take the whole gradient of one backward: reduce it, or keep it for one that does."""
        gradient = gradient.to(self.reduce_dtype)
        if self.pending is not None:
            gradient, self.pending = gradient + self.pending, None
        if not synchronises:
            self.pending = gradient
            return
        self.add(self.reduced(gradient).to(self.part.device, self.part.dtype))

    def reduced(self, gradient: Tensor) -> Tensor:
        """This rank's part of the mean."""
        part = gradient.contiguous()
        if self.groups.over is not None:
            part = torch.empty(self.size, dtype=gradient.dtype, device=gradient.device)
            dist.reduce_scatter_tensor(part, gradient.contiguous(), group=self.groups.over)
        if self.groups.across is not None:
            dist.all_reduce(part, group=self.groups.across)
        return part / self.groups.ranks

    def add(self, part: Tensor) -> None:
        """Add a part to the masters' gradients."""
        for name, master in self.masters.items():
            own = part[self._cuts[name]]
            master.grad = own.clone() if master.grad is None else master.grad + own

    # ------------------------------------------------------------------ results

    def whole_gradients(self) -> dict[str, Tensor | None]:
        """The mean gradients by name; None for all where there is none."""
        if any(master.grad is None for master in self.masters.values()):
            return {slot.name: None for slot in self.slots}
        part = torch.zeros_like(self.part)
        for name, master in self.masters.items():
            part[self._cuts[name]] = master.grad  # type: ignore[assignment]  # none is None
        return dict(self.named(self.gathered(part)))

    def gathered(self, part: Tensor) -> Tensor:
        """The whole of a value that every rank has a part of."""
        if self.groups.over is None:
            return part
        whole = torch.empty(self.size * self.groups.parts, dtype=part.dtype, device=self.device)
        dist.all_gather_into_tensor(whole, part.to(self.device), group=self.groups.over)
        return whole

    def named(self, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Cut a whole into parameters."""
        for slot in self.slots:
            yield slot.name, whole[slot.begin : slot.end].view(slot.shape)


class _Whole(torch.autograd.Function):
    """Hands out the whole; in the backward the whole gradient arrives."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        whole: Tensor,
        shard: Shard,
        synchronises: bool,
        done: Callable[[Shard], None],
    ) -> Tensor:
        ctx.shard, ctx.synchronises, ctx.done = shard, synchronises, done
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        ctx.shard.post_backward(gradient, synchronises=ctx.synchronises)
        ctx.done(ctx.shard)
        return None, None, None, None, None
