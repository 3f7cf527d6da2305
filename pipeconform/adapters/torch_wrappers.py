"""torch's own data-parallel wrappers: `DistributedDataParallel`, `fully_shard` and `FullyShardedDataParallel`."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from pipeconform.adapters.torch_sharding import (
    FSDP_SHARDING,
    FULLY_SHARD_SHARDING,
    device_of,
    fsdp_wrapped,
    fully_sharded,
)
from pipeconform.errors import Unsupported
from pipeconform.wrapper import (
    Compression,
    WrapOptions,
    WrapperClaims,
    WrapperDescription,
    WrapperFeature,
    judged_on,
)

__all__ = ["TorchDdp", "TorchFsdp", "TorchFullyShard"]

_F = WrapperFeature


class _Wrapped:
    """What the three have in common: the wrapped module, and refusals of what only one of them offers."""

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

    def scaler(self, scale: float) -> Any:
        return torch.amp.GradScaler(device_of(self.wrapped).type, init_scale=scale)

    def step_in_backward(self, lr: float) -> None:
        raise Unsupported("no optimizer in backward")

    def change_group(self, group: Any) -> None:
        raise Unsupported("no other process group")

    def register_buffer_hook(
        self, hook: Callable[[Mapping[str, Tensor]], None], *, before_forward: bool
    ) -> None:
        raise Unsupported("no hooks for buffers")

    def full_state(self) -> Mapping[str, Tensor]:
        found = get_model_state_dict(self.wrapped, options=StateDictOptions(full_state_dict=True))
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        set_model_state_dict(self.wrapped, dict(state), options=StateDictOptions(full_state_dict=True))

    def materialise(self) -> None:
        raise Unsupported("no modules on the meta device")

    def pickled(self) -> Any:
        raise Unsupported("no pickles")

    def logged(self) -> Mapping[str, object]:
        raise Unsupported("no logging data")

    def set_logging_rate(self, rate: int) -> None:
        raise Unsupported("no logging data")


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

    def change_group(self, group: Any) -> None:
        self.wrapped._update_process_group(group)

    def register_buffer_hook(
        self, hook: Callable[[Mapping[str, Tensor]], None], *, before_forward: bool
    ) -> None:
        places = _BufferCommHookLocation
        place = places.PRE_FORWARD if before_forward else places.POST_FORWARD
        self.wrapped._register_buffer_comm_hook(None, lambda _, buffers: hook(buffers), place)

    def pickled(self) -> _Ddp:
        return _Ddp(pickle.loads(pickle.dumps(self.wrapped)))  # noqa: S301 - what was pickled here

    def logged(self) -> Mapping[str, object]:
        told: Mapping[str, object] = self.wrapped._get_ddp_logging_data()
        return told

    def set_logging_rate(self, rate: int) -> None:
        self.wrapped._set_ddp_runtime_logging_sample_rate(rate)


class TorchDdp:
    """``torch.nn.parallel.DistributedDataParallel``."""

    def describe(self) -> WrapperDescription:
        elsewhere = {
            _F.MIXED_PRECISION: "RuntimeError: cpu backend doesn't support events",
            _F.STEP_IN_BACKWARD: "RuntimeError: Cannot access accelerator device when none is available",
        }
        if judged_on().backend == "nccl":
            elsewhere[_F.SPARSE] = "RuntimeError: NCCL does not support all_reduce with sparse tensors"
        features = frozenset(_F) - {
            *elsewhere,
            _F.BUFFER_DTYPE,
            _F.SHARDS,
            _F.OFFLOADS,
            _F.REFUSES,
            _F.DEFERRED,
        }
        # its hook for bfloat16 is for NCCL and XCCL only
        claims = WrapperClaims(features=features, compressions=("none", "float16"), elsewhere=elsewhere)
        return WrapperDescription(
            name="torch DDP",
            version=str(torch.__version__),
            claims=claims,
            packages=("torch.nn.parallel.distributed",),
        )

    def wrap(self, module: nn.Module, options: WrapOptions) -> _Ddp:
        if options.ignored:
            # the documented form is "{module_name}.{param_name}", also for the outermost module, whose name is empty
            named = [name if "." in name else f".{name}" for name in options.ignored]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, named)  # type: ignore[no-untyped-call]
        named_parameters = dict(module.named_parameters())
        delayed = [(name, named_parameters[name]) for name in options.delayed]
        return _Ddp(
            DistributedDataParallel(
                module,
                bucket_cap_mb=options.bucket_mib,
                find_unused_parameters=options.find_unused,
                static_graph=options.static_graph,
                gradient_as_bucket_view=options.bucket_view,
                broadcast_buffers=options.broadcast_buffers,
                process_group=dist.new_group() if options.new_group else None,
                device_ids=list(options.device_ids) or None,
                output_device=options.output_device,
                delay_all_reduce_named_params=delayed or None,
                param_to_hook_all_reduce=named_parameters[options.delayed_until] if delayed else None,
            )
        )


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


class _Sharded(_Wrapped):
    """``fully_shard``: parameters are distributed tensors of the module itself."""

    synchronises = True

    def step_in_backward(self, lr: float) -> None:
        for parameter in (p for p in self.wrapped.parameters() if p.requires_grad):
            optimizer = torch.optim.SGD([parameter], lr=lr)
            parameter.register_post_accumulate_grad_hook(functools.partial(_step, optimizer))

    def gradients(self) -> Mapping[str, Tensor | None] | None:
        if not self.synchronises:
            return None
        return {n: None if p.grad is None else _whole(p.grad) for n, p in self.wrapped.named_parameters()}

    def state(self) -> Mapping[str, Tensor]:
        named = {**dict(self.wrapped.named_parameters()), **dict(self.wrapped.named_buffers())}
        return {name: _whole(tensor.detach()) for name, tensor in named.items()}

    def materialise(self) -> None:
        """Materialise as the documentation of `fully_shard` does."""
        self.wrapped.to_empty(device=device_of(self.wrapped))
        for part in self.wrapped.modules():
            if any(True for _ in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
                with torch.no_grad():
                    part.reset_parameters()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.synchronises = self.synchronises, False
        self.wrapped.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.synchronises = before
            self.wrapped.set_requires_gradient_sync(before)


def _step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    optimizer.step()
    parameter.grad = None


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class TorchFullyShard:
    """``torch.distributed.fsdp.fully_shard``, the children first and then the root."""

    def describe(self) -> WrapperDescription:
        features = {_F.NO_SYNC, _F.TWO_FORWARDS, _F.CHECKPOINT, _F.REENTRANT, _F.STRUCTURED, _F.IGNORES}
        features |= {_F.GRADIENT_SCALER, _F.MIXED_PRECISION, _F.STEP_IN_BACKWARD}
        features |= {_F.MODIFIED_OUTPUTS, _F.FULL_STATE, _F.SHARDS, _F.DEFERRED}
        claims = WrapperClaims(
            features=frozenset(features),
            sharded=True,
            sharding=FULLY_SHARD_SHARDING,
            elsewhere={_F.OFFLOADS: "RuntimeError: Cannot access accelerator device when none is available"},
        )
        return WrapperDescription(
            name="torch fully_shard",
            version=str(torch.__version__),
            claims=claims,
            packages=("torch.distributed.fsdp._fully_shard",),
        )

    def wrap(self, module: nn.Module, options: WrapOptions) -> _Sharded:
        if options.sharding is not None:
            return _Sharded(fully_sharded(module, options))
        mesh = init_device_mesh(device_of(module).type, (dist.get_world_size(),))
        ignored = {p for name, p in module.named_parameters() if name in options.ignored}
        owners = [id(p) for child in module.children() for p in child.parameters()]
        policy = MixedPrecisionPolicy(
            param_dtype=_dtype(options.param_dtype), reduce_dtype=_dtype(options.reduce_dtype)
        )
        shard = functools.partial(fully_shard, mesh=mesh, ignored_params=ignored, mp_policy=policy)
        apart = len(set(owners)) == len(owners)  # shared parameters must be in one group, the root's
        for child in module.children():
            if apart and any(True for _ in child.parameters()):
                shard(child)
        shard(module)
        return _Sharded(module)


class _Fsdp(_Wrapped):
    """``FullyShardedDataParallel`` with original parameters."""

    synchronises = True

    def __init__(self, wrapped: Any, dtypes: Mapping[str, torch.dtype]) -> None:
        super().__init__(wrapped)
        self.dtypes = dtypes
        """The dtypes of buffers before wrapping, as the state dict has them; in the module they have another."""

    def gradients(self) -> Mapping[str, Tensor | None] | None:
        if not self.synchronises or not self.wrapped._use_orig_params:
            return None
        with FullyShardedDataParallel.summon_full_params(self.wrapped, with_grads=True, writeback=False):
            named = self._named()
            return {
                n: None if p.grad is None else p.grad.clone() for n, p in named.items() if _trained(p)
            } | {n: None for n, p in named.items() if isinstance(p, nn.Parameter) and not p.requires_grad}

    def state(self) -> Mapping[str, Tensor]:
        with FullyShardedDataParallel.summon_full_params(self.wrapped, writeback=False):
            named = self._named()
            return {n: t.detach().to(self.dtypes.get(n, t.dtype), copy=True) for n, t in named.items()}

    def materialise(self) -> None:
        """Do nothing: wrapping does it."""

    def scaler(self, scale: float) -> Any:
        return ShardedGradScaler(device_of(self.wrapped).type, init_scale=scale)

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
        features |= {_F.GRADIENT_SCALER, _F.MIXED_PRECISION, _F.BUFFER_DTYPE, _F.MODIFIED_OUTPUTS}
        features |= {_F.FULL_STATE, _F.SHARDS, _F.REFUSES, _F.DEFERRED}
        claims = WrapperClaims(
            features=frozenset(features),
            sharded=True,
            sharding=FSDP_SHARDING,
            elsewhere={_F.OFFLOADS: "RuntimeError: Cannot access accelerator device when none is available"},
        )
        return WrapperDescription(
            name="torch FSDP",
            version=str(torch.__version__),
            claims=claims,
            packages=("torch.distributed.fsdp",),
        )

    def wrap(self, module: nn.Module, options: WrapOptions) -> _Fsdp:
        dtypes = {name: buffer.dtype for name, buffer in module.named_buffers()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if options.sharding is not None:
                return _Fsdp(fsdp_wrapped(module, options), dtypes)
            wrapped = FullyShardedDataParallel(
                module,
                use_orig_params=True,
                device_id=device_of(module),
                mixed_precision=MixedPrecision(
                    param_dtype=_dtype(options.param_dtype),
                    reduce_dtype=_dtype(options.reduce_dtype),
                    buffer_dtype=_dtype(options.buffer_dtype),
                ),
            )
        return _Fsdp(wrapped, dtypes)
