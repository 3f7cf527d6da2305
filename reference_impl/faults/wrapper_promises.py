"""Data-parallel wrappers that are wrong about buffers, hooks, join, recomputation or outputs.

Every class changes one thing in the reference's wrapper; `wrappers` has those that are wrong about gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from ..communication_hooks import Hook, all_reduce_hook
from ..data_parallel import DataParallel
from ..gradient_buckets import Bucket
from ..replica_state import broadcast
from .fault import breaks_promise
from .wrappers import AfterPass

__all__: list[str] = []


@breaks_promise("DPW-15", tells="running_mean|seen")
class BuffersLeftAlone(DataParallel):
    """Buffers are not broadcast."""

    def synchronise_buffers(self) -> None:
        pass


@breaks_promise("DPW-15", tells="running_mean|seen")
class BuffersAlways(DataParallel):
    """Buffers are broadcast although switched off."""

    def synchronise_buffers(self) -> None:
        broadcast(self._buffers_kept().values(), self.group)


@breaks_promise("DPW-15", tells="seen")
class BuffersOfThen(DataParallel):
    """Buffers that were assigned anew are missed: those from the start are broadcast."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        self._then: dict[str, Tensor] = {}
        super().__init__(module, **how)
        self._then = super()._buffers_kept()

    def _buffers_kept(self) -> dict[str, Tensor]:
        return self._then or super()._buffers_kept()


class _Hooked(DataParallel):
    """Registers another hook than the given one."""

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        super().register_comm_hook(state, hook)
        self._hook = (self._other(hook), state)

    def _other(self, hook: Hook) -> Hook:
        raise NotImplementedError


@breaks_promise("DPW-16", tells="gradient of")
class CompressedSum(_Hooked):
    """A built-in hook's result is not divided."""

    def _other(self, hook: Hook) -> Hook:
        return lambda state, bucket: hook(state, bucket).then(lambda f: f.value() * self.group.size())


@breaks_promise("DPW-17", tells="gradient of")
class HookResultIgnored(_Hooked):
    """The hook's result is ignored."""

    def _other(self, hook: Hook) -> Hook:
        def other(state: Any, bucket: Bucket) -> Future[Tensor]:
            mine = bucket.buffer.clone()
            hook(state, bucket).wait()
            bucket.buffer.copy_(mine)
            return all_reduce_hook(self.group, bucket)

        return other


@breaks_promise("DPW-17", tells="given 0 elements")
class HookForFirstPass(DataParallel):
    """The hook is lost with the first buckets."""

    def _settle(self, holders: Mapping[str, int]) -> None:
        super()._settle(holders)
        self._hook = None


@breaks_promise("DPW-17", tells="elements of gradients")
class HookTwice(_Hooked):
    """The hook is called twice for a bucket."""

    def _other(self, hook: Hook) -> Hook:
        def other(state: Any, bucket: Bucket) -> Future[Tensor]:
            mine = bucket.buffer.clone()
            hook(state, bucket).wait()
            bucket.buffer.copy_(mine)
            return hook(state, bucket)

        return other


@breaks_promise("DPW-18", tells="raised nothing")
class AnythingIsAHook(DataParallel):
    """Everything is accepted as a hook."""

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        if callable(hook):
            self._hook = (all_reduce_hook, self.group)


@breaks_promise("DPW-19", tells="gradient of")
class JoinByAll(DataParallel):
    """Division is always by all ranks."""

    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Any:
        return super().join(divide_by_initial=True, raise_early=raise_early)


@breaks_promise("DPW-19", tells="gradient of")
class JoinByPresent(DataParallel):
    """Division is always by the ranks present."""

    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Any:
        return super().join(divide_by_initial=False, raise_early=raise_early)


@breaks_promise("DPW-19", tells="after join")
class JoinEndsApart(DataParallel):
    """Ranks end with their own parameters."""

    @contextmanager
    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Iterator[None]:
        own: dict[str, Tensor] = {}
        with super().join(divide_by_initial=divide_by_initial, raise_early=raise_early):
            yield
            own = {name: p.detach().clone() for name, p in self._parameters_kept.items()}
        with torch.no_grad():
            for name, parameter in self._parameters_kept.items():
                parameter.copy_(own[name])


@breaks_promise("DPW-19", tells="gradient of")
class StandInAddsOwn(DataParallel):
    """A rank without batches contributes its last gradients again."""

    def _stand_in(self, what: int) -> None:
        self._expect_all()
        self.end_pass()


@breaks_promise("DPW-20", tells="raised nothing")
class EarlyEndLetPass(DataParallel):
    """Uneven inputs are not refused."""

    def join(self, *, divide_by_initial: bool = True, raise_early: bool = False) -> Any:
        return super().join(divide_by_initial=divide_by_initial, raise_early=False)


@breaks_promise("DPW-21", tells="gradient of")
class ForwardsAveraged(AfterPass):
    """Two forwards count as half each."""

    forwards = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.forwards += 1
        return super().forward(*args, **kwargs)

    def end_pass(self, *, lenient: bool = False) -> None:
        super().end_pass(lenient=lenient)
        self.forwards = 0

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.div_(max(1, self.forwards))  # type: ignore[union-attr]


@breaks_promise("DPW-23", tells="gradient of enter")
@breaks_promise("DPW-22", tells="gradient of enter")
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

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        again, kept = self._again, self._parameters_kept
        return {
            n: 0 if id(kept[n]) in again else count for n, count in super()._holders(lenient=lenient).items()
        }


@breaks_promise("DPW-24", tells="the output is")
class MappingsBecomeTuples(DataParallel):
    """Dicts come back as tuples."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return tuple(result.values()) if isinstance(result, dict) else result


@breaks_promise("DPW-24", tells="gradient of")
class DataclassesUnread(DataParallel):
    """Tensors in a dataclass are not found, and the pass does not begin."""

    reads = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.reads = not dataclasses.is_dataclass(result)
        return result

    def begin_pass(self) -> None:
        if self.reads:
            super().begin_pass()


@breaks_promise("DPW-44", tells="gradient of")
class ReferencesUnread(DataParallel):
    """Tensors behind a remote reference are not found, and the pass does not begin."""

    reads = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.reads = not isinstance(result, rpc.RRef)
        return result

    def begin_pass(self) -> None:
        if self.reads:
            super().begin_pass()


@breaks_promise("DPW-44", tells="the output is")
class ReferencesFollowed(DataParallel):
    """A remote reference among the outputs comes back as its value."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return result.to_here() if isinstance(result, rpc.RRef) else result


@breaks_promise("DPW-25", tells="conv.weight")
class MemoryOrder(AfterPass):
    """Gradients are copied from the bucket in memory order."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            parameter.grad = gradient.contiguous().as_strided(parameter.shape, parameter.stride())


@breaks_promise("DPW-26", tells="table.weight")
class SparseSummed(AfterPass):
    """Sparse gradients are not divided."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad * self.group.size()


@breaks_promise("DPW-26", tells="table.weight")
class SparseLocal(DataParallel):
    """Sparse gradients are not reduced."""

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        return {
            n: 0 if n in self._sparse else count for n, count in super()._holders(lenient=lenient).items()
        }
