"""Data-parallel wrappers that are wrong on purpose about gradients; `breaks_promise` says what each breaks.

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
from .fault import breaks_promise

__all__ = ["AfterPass"]


class AfterPass(DataParallel):
    """Changes the gradients once they are reduced."""

    def end_pass(self, *, lenient: bool = False) -> None:
        """Reduce, then change."""
        due = self._in_pass
        super().end_pass(lenient=lenient)
        if due:
            for name, parameter in self._parameters_kept.items():
                if parameter.grad is not None:
                    self._spoil(name, parameter)

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        raise NotImplementedError


@breaks_promise("DPW-1", tells="gradient of")
class Summed(AfterPass):
    """Gradients are summed over the replicas."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.mul_(self.group.size())  # type: ignore[union-attr]


@breaks_promise("DPW-1", tells="gradient of")
class NeverReduced(DataParallel):
    """Gradients are never reduced."""

    def begin_pass(self) -> None:
        pass


@breaks_promise("DPW-1", tells="gradient of")
class OneRankFewer(AfterPass):
    """Sums are divided by one rank too few."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.mul_(self.group.size() / max(1, self.group.size() - 1))  # type: ignore[union-attr]


@breaks_promise("DPW-2", tells="not the first rank's")
class OwnValues(DataParallel):
    """Every rank keeps its own initial values."""

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        verify(tensors, self.group)


@breaks_promise("DPW-2", tells="norm.running_mean")
class OwnBuffers(DataParallel):
    """Buffers keep each rank's own initial values."""

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        verify(tensors, self.group)
        broadcast((t for t in tensors.values() if isinstance(t, nn.Parameter)), self.group)

    def synchronise_buffers(self) -> None:
        if self._settled:
            super().synchronise_buffers()


@breaks_promise("DPW-3", status="crashed", tells="died")
class ShapesUnread(DataParallel):
    """Only the number of parameters is compared, so that the broadcast mixes up shapes, or waits."""

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        broadcast(tensors.values(), self.group)


@breaks_promise("DPW-3", status="hung", tells="progress")
class FirstRankUntold(DataParallel):
    """The first rank goes on alone and waits."""

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            verify(tensors, self.group)
        except ReplicaError:
            if dist.get_rank(self.group):
                raise
        broadcast(tensors.values(), self.group)


@breaks_promise("DPW-3", tells="in its message")
class MismatchUnnamed(DataParallel):
    """The error does not name the parameter."""

    def _begin_equal(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            verify(tensors, self.group)
        except ReplicaError:
            raise ReplicaError("the replicas are not equal") from None
        broadcast(tensors.values(), self.group)


@breaks_promise("DPW-4", tells="gradient of")
class SinglePrecision(AfterPass):
    """Gradients go through single precision."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad = parameter.grad.float().to(parameter.dtype)  # type: ignore[union-attr]


@breaks_promise("DPW-5", tells="enter.weight")
class SharedTwice(AfterPass):
    """A parameter with two names counts twice."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        names = [n for n, p in self.module.named_parameters(remove_duplicate=False) if p is parameter]
        parameter.grad.mul_(len(names))  # type: ignore[union-attr]


@breaks_promise("DPW-5", tells="kept.weight")
class FrozenTrained(DataParallel):
    """Frozen parameters are trained."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        super().__init__(module.requires_grad_(True), **how)


@breaks_promise("DPW-6", tells="own changes when")
class NothingIgnored(DataParallel):
    """Parameters that should be ignored are synchronised."""

    def __init__(self, module: nn.Module, *, options: Options, **how: Any) -> None:
        super().__init__(module, options=dataclasses.replace(options, ignored=frozenset()), **how)


@breaks_promise("DPW-6", tells="own_seen")
class IgnoredBuffersBroadcast(DataParallel):
    """Ignored buffers are broadcast."""

    def _buffers_kept(self) -> dict[str, Tensor]:
        return dict(self.module.named_buffers())


@breaks_promise("DPW-7", tells="gradient of")
class NoSyncLeaks(DataParallel):
    """After no_sync nothing is reduced any more."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._synchronises = False
        yield


@breaks_promise("DPW-7", tells=r"pass 0 \(no\)")
class NoSyncForgotten(DataParallel):
    """Passes inside no_sync are reduced."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


@breaks_promise("DPW-7", tells=r"\(nested\)")
class InnerContextEnds(DataParallel):
    """The inner of two no_sync contexts ends the outer one."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._synchronises = False
        try:
            yield
        finally:
            self._synchronises = True


@breaks_promise("DPW-14", tells="step 2")
@breaks_promise("DPW-7", tells="gradient of")
class AccumulatedDropped(DataParallel):
    """Gradients that added up are dropped."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._synchronises and torch.is_grad_enabled():
            for parameter in self._parameters_kept.values():
                parameter.grad = None
        return super().forward(*args, **kwargs)


@breaks_promise("DPW-8", tells=r"\((back|for)ward_inside\)")
class BackwardDecides(DataParallel):
    """The context of the backward, not of its forward, decides whether it synchronises."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before, self._synchronises = self._synchronises, True
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._synchronises = before

    def begin_pass(self) -> None:
        if self._synchronises:
            super().begin_pass()


@breaks_promise("DPW-9", tells="towers")
class UnusedStale(DataParallel):
    """A rank that has no gradient of a parameter keeps none, whatever the others have."""

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        holders = super()._holders(lenient=lenient)
        return {name: count if name in self._arrivals else 0 for name, count in holders.items()}


@breaks_promise("DPW-9", tells="gradient of")
class NothingReachedLeft(DataParallel):
    """A rank whose backward reaches no parameter takes no part in the reduction."""

    def _backward_ended(self) -> None:
        self._added.clear()
        super()._backward_ended()


@breaks_promise("DPW-9", tells="towers")
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


@breaks_promise("DPW-10", status="hung", tells="progress")
class StaticByEachRank(DataParallel):
    """Every rank learns the static graph by itself."""

    def _settle(self, holders: Mapping[str, int]) -> None:
        super()._settle({name: int(name in self._arrivals) for name in holders})


@breaks_promise("DPW-10", tells="step 0")
class StaticFirstForgotten(DataParallel):
    """The first pass of a static graph is not reduced."""

    def begin_pass(self) -> None:
        if self.options.static_graph and not self._settled:
            self._settled = True
        else:
            super().begin_pass()


@breaks_promise("DPW-11", tells="in its message")
class UnusedUnnamed(DataParallel):
    """The error does not name the parameter."""

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        try:
            return super()._holders(lenient=lenient)
        except ReplicaError:
            raise ReplicaError("some parameter was not used") from None


@breaks_promise("DPW-11", tells="towers.b")
class UnusedAsOnes(AfterPass):
    """An unused parameter gets a gradient of ones."""

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        return dict.fromkeys(self._parameters_kept, self.attendance.present)

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if name not in self._arrivals:
            parameter.grad.fill_(1)  # type: ignore[union-attr]


@breaks_promise("DPW-12", tells="gradient of")
class LastBucketLocal(DataParallel):
    """The last bucket is never reduced."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        super().__init__(module, **how)
        self._hook = (_not_the_last, self.group)


def _not_the_last(group: Any, bucket: Bucket) -> Future[Tensor]:
    if not bucket.is_last or not bucket.index:
        return all_reduce_hook(group, bucket)
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer)
    return done


@breaks_promise("DPW-12", tells="step 1")
class RebuiltOneShort(DataParallel):
    """The rebuilt buckets lack the last."""

    def _settle(self, holders: Mapping[str, int]) -> None:
        super()._settle(holders)
        if len(self._buckets) > 1:
            del self._buckets[-1]

    def _arrived(self, name: str, _: Tensor) -> None:
        if any(name in bucket.parameters for bucket in self._buckets):
            super()._arrived(name, _)
        else:
            self._arrivals[name] = 1


@breaks_promise("DPW-13", tells="step [12]")
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
