"""Data-parallel wrappers that are wrong on purpose about gradients; `registry_wrappers` says what each breaks.

Every class changes one thing in the reference's wrapper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ..communication_hooks import all_reduce_hook
from ..data_parallel import DataParallel, Options
from ..errors import ReplicaError
from ..gradient_buckets import Bucket
from ..replica_state import broadcast, verify

__all__ = ["AfterPass"]


class AfterPass(DataParallel):
    """Does something to the gradients once they are reduced."""

    def end_pass(self, *, lenient: bool = False) -> None:
        """Reduce, then spoil."""
        due = self._in_pass
        super().end_pass(lenient=lenient)
        if due:
            for name, parameter in self._parameters_kept.items():
                if parameter.grad is not None:
                    self._spoil(name, parameter)

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        raise NotImplementedError


class Summed(AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.mul_(self.group.size())  # type: ignore[union-attr]


class NeverReduced(DataParallel):
    def begin_pass(self) -> None:
        pass


class OneRankFewer(AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.mul_(self.group.size() / max(1, self.group.size() - 1))  # type: ignore[union-attr]


class OwnValues(DataParallel):
    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        verify(tensors, self.group)


class OwnBuffers(DataParallel):
    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        verify(tensors, self.group)
        broadcast((t for t in tensors.values() if isinstance(t, nn.Parameter)), self.group)

    def synchronise_buffers(self) -> None:
        if self._settled:
            super().synchronise_buffers()


class ShapesUnread(DataParallel):
    """Compares the number of parameters only, so that the broadcast mixes them up, or waits."""

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        broadcast(tensors.values(), self.group)


class FirstRankUntold(DataParallel):
    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            verify(tensors, self.group)
        except ReplicaError:
            if dist.get_rank(self.group):
                raise
        broadcast(tensors.values(), self.group)


class MismatchUnnamed(DataParallel):
    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            verify(tensors, self.group)
        except ReplicaError:
            raise ReplicaError("the replicas are not equal") from None
        broadcast(tensors.values(), self.group)


class SinglePrecision(AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad = parameter.grad.float().to(parameter.dtype)  # type: ignore[union-attr]


class SharedTwice(AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        names = [n for n, p in self.module.named_parameters(remove_duplicate=False) if p is parameter]
        parameter.grad.mul_(len(names))  # type: ignore[union-attr]


class FrozenTrained(DataParallel):
    def __init__(self, module: nn.Module, **how: Any) -> None:
        super().__init__(module.requires_grad_(True), **how)


class NothingIgnored(DataParallel):
    def __init__(self, module: nn.Module, *, options: Options, **how: Any) -> None:
        super().__init__(module, options=dataclasses.replace(options, ignored=frozenset()), **how)


class IgnoredBuffersBroadcast(DataParallel):
    def _buffers_kept(self) -> dict[str, Tensor]:
        return dict(self.module.named_buffers())


class NoSyncLeaks(DataParallel):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._synchronises = False
        yield


class NoSyncForgotten(DataParallel):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


class InnerContextEnds(DataParallel):
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._synchronises = False
        try:
            yield
        finally:
            self._synchronises = True


class AccumulatedDropped(DataParallel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._synchronises and torch.is_grad_enabled():
            for parameter in self._parameters_kept.values():
                parameter.grad = None
        return super().forward(*args, **kwargs)


class BackwardDecides(DataParallel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before, self._synchronises = self._synchronises, True
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._synchronises = before

    def begin_pass(self) -> None:
        if self._synchronises:
            super().begin_pass()


class UnusedStale(DataParallel):
    """A rank that has no gradient of a parameter keeps none, whatever the others have."""

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        holders = super()._holders(lenient=lenient)
        return {name: count if name in self._arrivals else 0 for name, count in holders.items()}


class NothingReachedLeft(DataParallel):
    """A backward that reaches no parameter is taken for gradients of inputs, and no part in the reduction taken."""

    def _backward_ended(self) -> None:
        self._added.clear()
        super()._backward_ended()


class UnusedByUsers(DataParallel):
    """Means are over the ranks that used a parameter."""

    def end_pass(self, *, lenient: bool = False) -> None:
        due, self._counted = self._in_pass, dict[str, int]()
        super().end_pass(lenient=lenient)
        for name, count in self._counted.items() if due else ():
            gradient = self._parameters_kept[name].grad
            if gradient is not None and count:
                gradient.mul_(self.group.size() / count)

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        self._counted = super()._holders(lenient=lenient)
        return self._counted


class StaticByEachRank(DataParallel):
    """What a static graph reaches is learned by every rank for itself."""

    def _settle(self, holders: Mapping[str, int]) -> None:
        super()._settle({name: int(name in self._arrivals) for name in holders})


class StaticFirstForgotten(DataParallel):
    """The first pass of a static graph is not reduced."""

    def begin_pass(self) -> None:
        if self.options.static_graph and not self._settled:
            self._settled = True
        else:
            super().begin_pass()


class UnusedUnnamed(DataParallel):
    def _holders(self, *, lenient: bool) -> dict[str, int]:
        try:
            return super()._holders(lenient=lenient)
        except ReplicaError:
            raise ReplicaError("some parameter was not used") from None


class UnusedAsOnes(AfterPass):
    """A parameter that nobody used is moved nevertheless."""

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        return dict.fromkeys(self._parameters_kept, self.attendance.present)

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if name not in self._arrivals:
            parameter.grad.fill_(1)  # type: ignore[union-attr]


class LastBucketLocal(DataParallel):
    def __init__(self, module: nn.Module, **how: Any) -> None:
        super().__init__(module, **how)
        self._hook = (_not_the_last, self.group)


def _not_the_last(group: Any, bucket: Bucket) -> Future[Tensor]:
    if not bucket.is_last or not bucket.index:
        return all_reduce_hook(group, bucket)
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer)
    return done


class RebuiltOneShort(DataParallel):
    def _settle(self, holders: Mapping[str, int]) -> None:
        super()._settle(holders)
        if len(self._buckets) > 1:
            del self._buckets[-1]

    def _arrived(self, name: str, _: Tensor) -> None:
        if any(name in bucket.parameters for bucket in self._buckets):
            super()._arrived(name, _)
        else:
            self._arrivals[name] = 1


class ViewsTwice(DataParallel):
    """A gradient that lives in its bucket is added to it once more."""

    def _put(self, bucket: Bucket, name: str) -> None:
        gradient = bucket.parameters[name].grad
        inside = gradient is not None and not bucket.sparse
        inside = inside and _memory(gradient) == _memory(bucket.buffer)
        super()._put(bucket, name)
        if inside:
            gradient.mul_(2)  # type: ignore[union-attr]


def _memory(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.untyped_storage().data_ptr()
