"""Data-parallel wrappers that are wrong on purpose; `registry_wrappers` says what each breaks.

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

from ..communication_hooks import Hook, all_reduce_hook
from ..data_parallel import DataParallel, Options
from ..errors import ReplicaError
from ..gradient_buckets import Bucket
from ..replica_state import broadcast, verify

__all__: list[str] = []


class _AfterPass(DataParallel):
    """Does something to the gradients once they are reduced."""

    def end_pass(self) -> None:
        due = self._in_pass
        super().end_pass()
        if due:
            for name, parameter in self._parameters_kept.items():
                if parameter.grad is not None:
                    self._spoil(name, parameter)

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        raise NotImplementedError


class Summed(_AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.mul_(self.group.size())  # type: ignore[union-attr]


class NeverReduced(DataParallel):
    def begin_pass(self) -> None:
        pass


class OneRankFewer(_AfterPass):
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


class SinglePrecision(_AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad = parameter.grad.float().to(parameter.dtype)  # type: ignore[union-attr]


class SharedTwice(_AfterPass):
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

    def _holders(self) -> dict[str, int]:
        holders = super()._holders()
        return {name: count if name in self._arrivals else 0 for name, count in holders.items()}


class UnusedByUsers(DataParallel):
    """Means are over the ranks that used a parameter."""

    def end_pass(self) -> None:
        due, self._counted = self._in_pass, dict[str, int]()
        super().end_pass()
        for name, count in self._counted.items() if due else ():
            gradient = self._parameters_kept[name].grad
            if gradient is not None and count:
                gradient.mul_(self.group.size() / count)

    def _holders(self) -> dict[str, int]:
        self._counted = super()._holders()
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
    def _holders(self) -> dict[str, int]:
        try:
            return super()._holders()
        except ReplicaError:
            raise ReplicaError("some parameter was not used") from None


class UnusedAsOnes(_AfterPass):
    """A parameter that nobody used is moved nevertheless."""

    def _holders(self) -> dict[str, int]:
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


class BuffersLeftAlone(DataParallel):
    def synchronise_buffers(self) -> None:
        pass


class BuffersAlways(DataParallel):
    def synchronise_buffers(self) -> None:
        broadcast(self._buffers_kept().values(), self.group)


class BuffersOfThen(DataParallel):
    """Broadcasts the buffers that there were when it was made."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        self._then: dict[str, Tensor] = {}
        super().__init__(module, **how)
        self._then = super()._buffers_kept()

    def _buffers_kept(self) -> dict[str, Tensor]:
        return self._then or super()._buffers_kept()


class _Hooked(DataParallel):
    """Registers another hook than it is given."""

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        super().register_comm_hook(state, hook)
        self._hook = (self._other(hook), state)

    def _other(self, hook: Hook) -> Hook:
        raise NotImplementedError


class CompressedSum(_Hooked):
    def _other(self, hook: Hook) -> Hook:
        return lambda state, bucket: hook(state, bucket).then(lambda f: f.value() * self.group.size())


class HookResultIgnored(_Hooked):
    def _other(self, hook: Hook) -> Hook:
        def other(state: Any, bucket: Bucket) -> Future[Tensor]:
            mine = bucket.buffer.clone()
            hook(state, bucket).wait()
            bucket.buffer.copy_(mine)
            return all_reduce_hook(self.group, bucket)

        return other


class HookForFirstPass(DataParallel):
    def _settle(self, holders: Mapping[str, int]) -> None:
        super()._settle(holders)
        self._hook = None


class HookTwice(_Hooked):
    def _other(self, hook: Hook) -> Hook:
        def other(state: Any, bucket: Bucket) -> Future[Tensor]:
            mine = bucket.buffer.clone()
            hook(state, bucket).wait()
            bucket.buffer.copy_(mine)
            return hook(state, bucket)

        return other


class AnythingIsAHook(DataParallel):
    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        if callable(hook):
            self._hook = (all_reduce_hook, self.group)


class JoinByAll(DataParallel):
    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Any:
        return super().join(divide_by_initial=True, raise_early=raise_early)


class JoinByPresent(DataParallel):
    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Any:
        return super().join(divide_by_initial=False, raise_early=raise_early)


class JoinEndsApart(DataParallel):
    @contextmanager
    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Iterator[None]:
        own: dict[str, Tensor] = {}
        with super().join(divide_by_initial=divide_by_initial, raise_early=raise_early):
            yield
            own = {name: p.detach().clone() for name, p in self._parameters_kept.items()}
        with torch.no_grad():
            for name, parameter in self._parameters_kept.items():
                parameter.copy_(own[name])


class StandInAddsOwn(DataParallel):
    """A rank without batches hands in its last gradients again."""

    def _stand_in(self, what: int) -> None:
        self._expect_all()
        self.end_pass()


class EarlyEndLetPass(DataParallel):
    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Any:
        return super().join(divide_by_initial=divide_by_initial, raise_early=False)


class ForwardsAveraged(_AfterPass):
    forwards = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.forwards += 1
        return super().forward(*args, **kwargs)

    def end_pass(self) -> None:
        super().end_pass()
        self.forwards = 0

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.div_(max(1, self.forwards))  # type: ignore[union-attr]


class RecomputedLocal(DataParallel):
    """Parameters of parts that run again inside the backward pass are not averaged."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        super().__init__(module, **how)
        self._again: set[int] = set()
        for part in module.modules():
            part.register_forward_pre_hook(self._ran)

    def _ran(self, part: nn.Module, _: Any) -> None:
        if self._in_pass:
            self._again |= {id(parameter) for parameter in part.parameters(recurse=False)}

    def _holders(self) -> dict[str, int]:
        again, kept = self._again, self._parameters_kept
        return {n: 0 if id(kept[n]) in again else count for n, count in super()._holders().items()}


class MappingsBecomeTuples(DataParallel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return tuple(result.values()) if isinstance(result, dict) else result


class DataclassesUnread(DataParallel):
    """Tensors in a dataclass are not found, and the pass not begun."""

    reads = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.reads = not dataclasses.is_dataclass(result)
        return result

    def begin_pass(self) -> None:
        if self.reads:
            super().begin_pass()


class MemoryOrder(_AfterPass):
    """Takes gradients from the bucket in the order of memory."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            parameter.grad = gradient.contiguous().as_strided(parameter.shape, parameter.stride())


class SparseSummed(_AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad * self.group.size()


class SparseLocal(DataParallel):
    def _holders(self) -> dict[str, int]:
        return {n: 0 if n in self._sparse else count for n, count in super()._holders().items()}
