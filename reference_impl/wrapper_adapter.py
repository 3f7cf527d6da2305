"""The reference's data-parallel wrapper behind the contract."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeconform.wrapper import (
    Compression,
    WrapOptions,
    WrapperClaims,
    WrapperDescription,
    WrapperFeature,
)

from .communication_hooks import all_reduce_hook, compress_hook
from .data_parallel import DataParallel, Options
from .replica_precision import MixedPrecision
from .sharded_adapter import SHARDING, ShardedReplica, shard

__all__ = ["ReferenceWrapper", "Replica"]


class Replica:
    """One wrapped replica."""

    def __init__(self, wrapper: DataParallel) -> None:
        self.wrapper = wrapper

    def run(self, *args: Any) -> Any:
        """Run the forward."""
        return self.wrapper(*args)

    def parameters(self) -> Iterable[nn.Parameter]:
        """All parameters."""
        return self.wrapper.parameters()

    def gradients(self) -> Mapping[str, Tensor | None]:
        """The gradients by name."""
        return {name: p.grad for name, p in self.wrapper.module.named_parameters()}

    def state(self) -> Mapping[str, Tensor]:
        """Parameters and buffers by name."""
        module = self.wrapper.module
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def no_sync(self) -> AbstractContextManager[None]:
        """Only add up gradients."""
        return self.wrapper.no_sync()

    def join(self, *, divide_by_initial: bool, raise_early: bool) -> AbstractContextManager[None]:
        """Surround a loop over uneven inputs."""
        return self.wrapper.join(divide_by_initial=divide_by_initial, raise_early=raise_early)

    def register_hook(self, state: Any, hook: Any) -> None:
        """Register a communication hook."""
        self.wrapper.register_comm_hook(state, hook)

    def compression(self, kind: Compression) -> tuple[Any, Callable[..., Any]]:
        """A built-in hook."""
        return self.wrapper.group, all_reduce_hook if kind == "none" else compress_hook(getattr(torch, kind))

    def buffer_of(self, bucket: Any) -> Tensor:
        """The bucket's gradients."""
        buffer: Tensor = bucket.buffer
        return buffer

    def scaler(self, scale: float) -> Any:
        """torch's: every rank has the same gradients, so all of them skip the same steps."""
        return torch.amp.GradScaler(next(iter(self.parameters())).device.type, init_scale=scale)

    def step_in_backward(self, lr: float) -> None:
        """Step each parameter with an optimizer of its own."""
        self.wrapper.step_in_backward(lambda parameter: torch.optim.SGD([parameter], lr=lr))

    def change_group(self, group: Any) -> None:
        """Go on in another process group."""
        self.wrapper.change_group(group)

    def register_buffer_hook(
        self, hook: Callable[[Mapping[str, Tensor]], None], *, before_forward: bool
    ) -> None:
        """Set an option of the wrapper."""
        self.wrapper.options = dataclasses.replace(
            self.wrapper.options,
            buffer_hook=lambda buffers, group: hook(buffers),
            buffers_when="before_forward" if before_forward else "after_forward",
        )

    def full_state(self) -> Mapping[str, Tensor]:
        """The module's own state dict."""
        return self.wrapper.full_state()

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the module's own state dict."""
        self.wrapper.load_full_state(state)

    def materialise(self) -> None:
        """Give memory to the module, with the first rank's values."""
        self.wrapper.materialise()

    def pickled(self) -> Replica:
        """Pickle the wrapper and wrap anew."""
        return Replica(pickle.loads(pickle.dumps(self.wrapper)))  # noqa: S301 - what was pickled here

    def logged(self) -> Mapping[str, object]:
        """The wrapper's own report."""
        return self.wrapper.logged()

    def set_logging_rate(self, rate: int) -> None:
        """Set the rate of its log."""
        self.wrapper.log.set_rate(rate)


class ReferenceWrapper:
    """The wrapper of `data_parallel`; it claims everything."""

    wrapper: type[DataParallel] = DataParallel

    def describe(self) -> WrapperDescription:
        """Claim every feature."""
        claims = WrapperClaims(features=frozenset(WrapperFeature), sharding=SHARDING)
        return WrapperDescription(name="reference wrapper", version="1", claims=claims)

    def wrap(self, module: nn.Module, options: WrapOptions) -> Replica | ShardedReplica:
        """Wrap for the default group."""
        if options.sharding is not None:
            return shard(module, options)
        bucket = Options.bucket_mib if options.bucket_mib is None else options.bucket_mib
        made = Options(
            bucket_mib=bucket,
            first_bucket_mib=min(bucket, Options.first_bucket_mib),
            find_unused=options.find_unused,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.bucket_view,
            broadcast_buffers=options.broadcast_buffers,
            ignored=frozenset(options.ignored),
            delayed=frozenset(options.delayed),
            mixed_precision=_precision(options),
            device=_device(options),
        )
        group = dist.new_group() if options.new_group else dist.group.WORLD
        return Replica(self.wrapper(module, group=group, options=made))


def _precision(options: WrapOptions) -> MixedPrecision | None:
    given = (options.param_dtype, options.reduce_dtype, options.buffer_dtype)
    if not any(given):
        return None
    param, reduce, buffer = (None if name is None else getattr(torch, name) for name in given)
    return MixedPrecision(param_dtype=param, reduce_dtype=reduce, buffer_dtype=buffer)


def _device(options: WrapOptions) -> torch.device | None:
    """The device that the arguments name.

    Raises:
        ValueError: They name several, or that of the outputs alone.
    """
    if len(options.device_ids) > 1 or (options.output_device is not None and not options.device_ids):
        raise ValueError(
            f"device_ids names the device of the module, and output_device needs it: not "
            f"{options.device_ids} and {options.output_device}"
        )
    if not options.device_ids:
        return None
    kind = torch.accelerator.current_accelerator()
    return torch.device("cuda" if kind is None else kind.type, options.device_ids[0])
