"""torch's own data-parallel wrappers: `DistributedDataParallel`, `fully_shard` and `FullyShardedDataParallel`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pipeconform.errors import Unsupported
from pipeconform.wrapper import (
    Compression,
    WrapOptions,
    WrapperClaims,
    WrapperDescription,
    WrapperFeature,
)

__all__ = ["TorchDdp", "TorchFsdp", "TorchFullyShard"]

_F = WrapperFeature


class _Wrapped:
    """What the three have in common: a module that was wrapped, and what none but one of them offers."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def run(self, *args: Any) -> Any:
        return self.wrapped(*args)

    def parameters(self) -> Iterable[nn.Parameter]:
        found: Iterable[nn.Parameter] = self.wrapped.parameters()
        return found

    def no_sync(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.wrapped.no_sync()
        return context

    def join(self, *, divide_by_initial: bool, raise_early: bool) -> AbstractContextManager[Any]:
        raise Unsupported("no join")

    def register_hook(self, state: Any, hook: Any) -> None:
        raise Unsupported("no communication hooks")

    def compression(self, kind: Compression) -> tuple[Any, Callable[..., Any]]:
        raise Unsupported("no communication hooks")

    def buffer_of(self, bucket: Any) -> Tensor:
        raise Unsupported("no communication hooks")


class _Ddp(_Wrapped):
    def gradients(self) -> Mapping[str, Tensor | None]:
        return {name: p.grad for name, p in self.wrapped.module.named_parameters()}

    def state(self) -> Mapping[str, Tensor]:
        module = self.wrapped.module
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def join(self, *, divide_by_initial: bool, raise_early: bool) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.wrapped.join(
            divide_by_initial_world_size=divide_by_initial, throw_on_early_termination=raise_early
        )
        return context

    def register_hook(self, state: Any, hook: Any) -> None:
        self.wrapped.register_comm_hook(state, hook)

    def compression(self, kind: Compression) -> tuple[Any, Callable[..., Any]]:
        hooks: dict[Compression, Callable[..., Any]] = {
            "none": default_hooks.allreduce_hook,
            "float16": default_hooks.fp16_compress_hook,
            "bfloat16": default_hooks.bf16_compress_hook,
        }
        return None, hooks[kind]

    def buffer_of(self, bucket: Any) -> Tensor:
        buffer: Tensor = bucket.buffer()
        return buffer


class TorchDdp:
    """``torch.nn.parallel.DistributedDataParallel``."""

    def describe(self) -> WrapperDescription:
        # its hook for bfloat16 is for NCCL and XCCL only
        claims = WrapperClaims(features=frozenset(_F), compressions=("none", "float16"))
        return WrapperDescription(name="torch DDP", version=str(torch.__version__), claims=claims)

    def wrap(self, module: nn.Module, options: WrapOptions) -> _Ddp:
        if options.ignored:
            # the documented form is "{module_name}.{param_name}", also for the outermost module, whose name is empty
            named = [name if "." in name else f".{name}" for name in options.ignored]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, named)  # type: ignore[no-untyped-call]
        return _Ddp(
            DistributedDataParallel(
                module,
                bucket_cap_mb=options.bucket_mib,
                find_unused_parameters=options.find_unused,
                static_graph=options.static_graph,
                gradient_as_bucket_view=options.bucket_view,
                broadcast_buffers=options.broadcast_buffers,
            )
        )


class _Sharded(_Wrapped):
    """``fully_shard``: parameters are distributed tensors of the module itself."""

    synchronises = True

    def gradients(self) -> Mapping[str, Tensor | None] | None:
        if not self.synchronises:
            return None
        return {n: None if p.grad is None else _whole(p.grad) for n, p in self.wrapped.named_parameters()}

    def state(self) -> Mapping[str, Tensor]:
        named = {**dict(self.wrapped.named_parameters()), **dict(self.wrapped.named_buffers())}
        return {name: _whole(tensor.detach()) for name, tensor in named.items()}

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.synchronises = self.synchronises, False
        self.wrapped.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.synchronises = before
            self.wrapped.set_requires_gradient_sync(before)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class TorchFullyShard:
    """``torch.distributed.fsdp.fully_shard``, the children first and then the root."""

    def describe(self) -> WrapperDescription:
        features = {_F.NO_SYNC, _F.TWO_FORWARDS, _F.CHECKPOINT, _F.REENTRANT, _F.STRUCTURED, _F.IGNORES}
        claims = WrapperClaims(features=frozenset(features), sharded=True)
        return WrapperDescription(name="torch fully_shard", version=str(torch.__version__), claims=claims)

    def wrap(self, module: nn.Module, options: WrapOptions) -> _Sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        ignored = {p for name, p in module.named_parameters() if name in options.ignored}
        owners = [id(p) for child in module.children() for p in child.parameters()]
        apart = len(set(owners)) == len(owners)  # what children share has to be in one group, the root's
        for child in module.children():
            if apart and any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh, ignored_params=ignored)
        fully_shard(module, mesh=mesh, ignored_params=ignored)
        return _Sharded(module)


class _Fsdp(_Wrapped):
    """``FullyShardedDataParallel`` with original parameters."""

    synchronises = True

    def gradients(self) -> Mapping[str, Tensor | None] | None:
        if not self.synchronises:
            return None
        with FullyShardedDataParallel.summon_full_params(self.wrapped, with_grads=True, writeback=False):
            named = self._named()
            return {
                n: None if p.grad is None else p.grad.clone() for n, p in named.items() if _trained(p)
            } | {n: None for n, p in named.items() if isinstance(p, nn.Parameter) and not p.requires_grad}

    def state(self) -> Mapping[str, Tensor]:
        with FullyShardedDataParallel.summon_full_params(self.wrapped, writeback=False):
            return {name: tensor.detach().clone() for name, tensor in self._named().items()}

    def _named(self) -> dict[str, Any]:
        named = {**dict(self.wrapped.named_parameters()), **dict(self.wrapped.named_buffers())}
        return {name.replace("_fsdp_wrapped_module.", ""): tensor for name, tensor in named.items()}

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.synchronises = self.synchronises, False
        try:
            with self.wrapped.no_sync():
                yield
        finally:
            self.synchronises = before


def _trained(tensor: Any) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


class TorchFsdp:
    """``torch.distributed.fsdp.FullyShardedDataParallel`` around the whole module."""

    def describe(self) -> WrapperDescription:
        # no broadcast: sync_module_states is for parameters on an accelerator only
        features = {_F.NO_SYNC, _F.TWO_FORWARDS, _F.CHECKPOINT, _F.STRUCTURED}
        claims = WrapperClaims(features=frozenset(features), sharded=True)
        return WrapperDescription(name="torch FSDP", version=str(torch.__version__), claims=claims)

    def wrap(self, module: nn.Module, options: WrapOptions) -> _Fsdp:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = FullyShardedDataParallel(module, use_orig_params=True, device_id=torch.device("cpu"))
        return _Fsdp(wrapped)
