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
from .wrappers import AfterPass

__all__: list[str] = []


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


class ForwardsAveraged(AfterPass):
    forwards = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.forwards += 1
        return super().forward(*args, **kwargs)

    def end_pass(self, *, lenient: bool = False) -> None:
        super().end_pass(lenient=lenient)
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

    def _holders(self, *, lenient: bool) -> dict[str, int]:
        again, kept = self._again, self._parameters_kept
        return {
            n: 0 if id(kept[n]) in again else count for n, count in super()._holders(lenient=lenient).items()
        }


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


class ReferencesUnread(DataParallel):
    """A remote reference is passed on unread, and the pass not begun."""

    reads = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.reads = not isinstance(result, rpc.RRef)
        return result

    def begin_pass(self) -> None:
        if self.reads:
            super().begin_pass()


class ReferencesFollowed(DataParallel):
    """What is referred to comes back instead of the reference."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return result.to_here() if isinstance(result, rpc.RRef) else result


class MemoryOrder(AfterPass):
    """Takes gradients from the bucket in the order of memory."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            parameter.grad = gradient.contiguous().as_strided(parameter.shape, parameter.stride())


class SparseSummed(AfterPass):
    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad * self.group.size()


class SparseLocal(DataParallel):
    def _holders(self, *, lenient: bool) -> dict[str, int]:
        return {
            n: 0 if n in self._sparse else count for n, count in super()._holders(lenient=lenient).items()
        }
