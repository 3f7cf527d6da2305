"""Faults of communication: what arrives is not what was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeconform.schedule import Action

from ..containers import leaves_of, map_leaves
from ..link import Failure, Link
from ..runtime import Step, Yield
from .fault import breaks


def _each_tensor(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Change every tensor of a message and keep its flag; None stays None."""

    def change(leaf: Tensor | None) -> Tensor | None:
        if leaf is None:
            return None
        with torch.no_grad():
            changed = function(leaf.detach())
        return changed.requires_grad_(leaf.requires_grad)

    return value if isinstance(value, Failure) else map_leaves(change, value)


@breaks("FWD-1")
class StaleActivation(Link):
    """Every second message delivers the activation of the one before.

    The receive seems complete too early, while the buffer still holds the microbatch before.
    """

    last: tuple[Any, ...] = ()

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        if self.last and _alike(value, self.last[0]):
            value, self.last = self.last[0], ()
        else:
            self.last = (value,)
        return value


@breaks("TRN-1", schedule="GPipe")
class BufferReused(Link):
    """One buffer receives all microbatches of the same shapes, even while earlier ones need it."""

    first: Any = None

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        if self.first is None or not _alike(value, self.first):
            self.first = value
            return value
        for mine, new in zip(leaves_of(self.first), leaves_of(value), strict=True):
            if mine is not None:
                mine.data.copy_(new.data)  # behind autograd's back, as a transport does
        return self.first


@breaks("FWD-1")
class RoundedToBfloat16(Link):
    """Activations travel in bfloat16."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(_each_tensor(_rounded, value), to=to)


@breaks("FWD-6", also=("TRN-16",))
class GradientsIn8Bits(Link):
    """Gradients in 16 bits travel in 8 bits; activations as they are."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(value if isinstance(value, Failure) else map_leaves(_narrowed_gradient, value), to=to)


@breaks("FWD-7", source="https://github.com/pytorch/pytorch/issues/62283")
class Scrambled(Link):
    """A transposed tensor's memory is sent as if it were contiguous."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(_each_tensor(_in_memory_order, value), to=to)


@breaks("FWD-14")
class OutputsFreed(Link):
    """A stage's output is freed as soon as it is sent, although an in-place operation needs it for its backward."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(value, to=to)
        self.wait()
        for leaf in leaves_of(value):
            if leaf is not None:
                leaf.data.zero_()  # behind autograd's back, as freeing the memory is


@breaks("FWD-5")
class MasksLost(Link):
    """Tensors that are not floating arrive as zeros."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(
            _each_tensor(lambda t: t if t.is_floating_point() else torch.zeros_like(t), value), to=to
        )


@breaks("FWD-4")
class OnlyFirstRefreshed(Link):
    """Of a boundary only the first tensor is renewed; the others stay those of microbatch 0."""

    first: Any = None

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        if not isinstance(value, tuple | list) or len(value) < 2:
            return value
        if self.first is None or not _alike(value, self.first):
            self.first = value
        return type(value)([value[0], *self.first[1:]])


@breaks("FWD-6")
class WrongHalf(Link):
    """Each 16-bit float type travels as the other one."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(_each_tensor(_other_half, value), to=to)


@breaks("FWD-1", status="error", source="https://github.com/pytorch/PiPPy/pull/1014")
class PositionTakenForProcess(Link):
    """A position is taken for a process, which is right only if the pipeline is the world."""

    def process(self, position: int) -> int:
        return position


@breaks("TRN-1", status="hung", also=("FWD-1",))
class Unmatched(Step):
    """The first rank waits for a message that is never sent."""

    def run(self, actions: Sequence[Action]) -> Yield:
        done = super().run(actions)
        if self.position == 0 and len(set(self.placement)) > 1:
            self.link.receive(source=1)
        return done


def _alike(a: Any, b: Any) -> bool:
    """Whether two messages have tensors of the same shapes and dtypes."""

    def look(value: Any) -> list[Any]:
        return [
            None if leaf is None else (leaf.shape, leaf.dtype, leaf.requires_grad)
            for leaf in leaves_of(value)
        ]

    return not isinstance(a, Failure) and not isinstance(b, Failure) and look(a) == look(b)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor


def _narrowed_gradient(leaf: Tensor | None) -> Tensor | None:
    if leaf is None or leaf.requires_grad or leaf.dtype not in (torch.bfloat16, torch.float16):
        return leaf
    return leaf.to(torch.float8_e5m2).to(leaf.dtype)


def _in_memory_order(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous() or 0 in tensor.stride():
        return tensor
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(tensor.shape)


def _other_half(tensor: Tensor) -> Tensor:
    other = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}.get(tensor.dtype, tensor.dtype)
    return tensor.to(other).to(tensor.dtype)
