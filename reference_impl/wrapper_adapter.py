"""The reference's data-parallel wrapper behind the contract."""

from __future__ import annotations

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

__all__ = ["ReferenceWrapper", "Replica"]


class Replica:
    """One wrapped replica."""

    def __init__(self, wrapper: DataParallel) -> None:
        self.wrapper = wrapper

    def run(self, *args: Any) -> Any:
        """The forward."""
        return self.wrapper(*args)

    def parameters(self) -> Iterable[nn.Parameter]:
        """All of them."""
        return self.wrapper.parameters()

    def gradients(self) -> Mapping[str, Tensor | None]:
        """By name."""
        return {name: p.grad for name, p in self.wrapper.module.named_parameters()}

    def state(self) -> Mapping[str, Tensor]:
        """Parameters and buffers by name."""
        module = self.wrapper.module
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def no_sync(self) -> AbstractContextManager[None]:
        """Only add up."""
        return self.wrapper.no_sync()

    def join(self, *, divide_by_initial: bool, raise_early: bool) -> AbstractContextManager[None]:
        """Uneven inputs."""
        return self.wrapper.join(divide_by_initial=divide_by_initial, raise_early=raise_early)

    def register_hook(self, state: Any, hook: Any) -> None:
        """Register it."""
        self.wrapper.register_comm_hook(state, hook)

    def compression(self, kind: Compression) -> tuple[Any, Callable[..., Any]]:
        """A built-in hook."""
        return self.wrapper.group, all_reduce_hook if kind == "none" else compress_hook(getattr(torch, kind))

    def buffer_of(self, bucket: Any) -> Tensor:
        """The bucket's gradients."""
        buffer: Tensor = bucket.buffer
        return buffer


class ReferenceWrapper:
    """The wrapper of `data_parallel`; it claims everything."""

    wrapper: type[DataParallel] = DataParallel

    def describe(self) -> WrapperDescription:
        """Claims."""
        claims = WrapperClaims(features=frozenset(WrapperFeature))
        return WrapperDescription(name="reference wrapper", version="1", claims=claims)

    def wrap(self, module: nn.Module, options: WrapOptions) -> Replica:
        """Wrap for the default group."""
        bucket = Options.bucket_mib if options.bucket_mib is None else options.bucket_mib
        made = Options(
            bucket_mib=bucket,
            first_bucket_mib=min(bucket, Options.first_bucket_mib),
            find_unused=options.find_unused,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.bucket_view,
            broadcast_buffers=options.broadcast_buffers,
            ignored=frozenset(options.ignored),
        )
        return Replica(self.wrapper(module, group=dist.group.WORLD, options=made))
