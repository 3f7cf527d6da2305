"""The reference's sharded wrapper behind the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.sharding import Refusal, ShardingClaims
from pipeconform.wrapper import WrapOptions

from .sharded import Sharded

__all__ = ["SHARDING", "ShardedReplica", "shard"]

SHARDING = ShardingClaims(
    strategies=("full", "gradients", "none", "hybrid"),
    forward_prefetch=True,
    backward_prefetch=True,
    precisions=("same", "float32", "bfloat16", "reduce_float32"),
    original_parameters=(True, False),
    nestings=("root", "children", "nested", "uneven"),
    modules=("blocks", "few", "partly", "apart", "experts"),
    accumulates=True,
    compiled=True,
    refusals=(Refusal(combination=(("strategy", "hybrid"), ("ranks", "3")), says="hybrid.*3 ranks"),),
)


class ShardedReplica:
    """One sharded replica."""

    def __init__(self, wrapper: Sharded) -> None:
        self.wrapper = wrapper

    def run(self, *args: Any) -> Any:
        """Run the forward."""
        return self.wrapper(*args)

    def parameters(self) -> Iterable[nn.Parameter]:
        """This rank's parts."""
        return self.wrapper.parameters()

    def gradients(self) -> Mapping[str, Tensor | None] | None:
        """The whole gradients by name."""
        return self.wrapper.gradients()

    def state(self) -> Mapping[str, Tensor]:
        """The whole parameters and buffers by name."""
        return self.wrapper.state()

    def no_sync(self) -> AbstractContextManager[None]:
        """Only add up gradients."""
        return self.wrapper.no_sync()

    def materialise(self) -> None:
        """Give memory and values to the module, unit by unit."""
        self.wrapper.materialise()

    def full_state(self) -> Mapping[str, Tensor]:
        """The state dict as without sharding."""
        return self.wrapper.full_state()

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the state dict as without sharding."""
        self.wrapper.load_full_state(state)


def shard(module: nn.Module, options: WrapOptions, *, wrapper: type[Sharded] = Sharded) -> ShardedReplica:
    """Shard `module` as the options say, which have `sharding`."""
    assert options.sharding is not None
    dtypes = [
        None if name is None else getattr(torch, name) for name in (options.param_dtype, options.reduce_dtype)
    ]
    return ShardedReplica(
        wrapper(
            module,
            options.sharding,
            ignored=options.ignored,
            param_dtype=dtypes[0],
            reduce_dtype=dtypes[1],
        )
    )
