"""torch's sharded wrappers over the grid of options: their claims, and how they wrap a module."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)

from pipeconform.sharding import EXPERT, Refusal, Sharding, ShardingClaims, units_of
from pipeconform.wrapper import WrapOptions

__all__ = ["FSDP_SHARDING", "FULLY_SHARD_SHARDING", "device_of", "fsdp_wrapped", "fully_sharded"]

FULLY_SHARD_SHARDING = ShardingClaims(
    strategies=("full", "gradients", "hybrid"),
    forward_prefetch=True,
    backward_prefetch=True,
    precisions=("same", "float32", "bfloat16", "reduce_float32"),
    nestings=("root", "children", "nested", "uneven"),
    modules=("blocks", "few", "partly", "apart", "experts"),
    accumulates=True,
    compiled=True,
)

FSDP_SHARDING = ShardingClaims(
    strategies=("full", "gradients", "none", "hybrid"),
    forward_prefetch=True,
    backward_prefetch=True,
    precisions=("same", "float32", "bfloat16", "reduce_float32"),
    original_parameters=(True, False),
    nestings=("root", "children", "nested", "uneven"),
    modules=("blocks", "few", "partly", "apart", "experts"),
    accumulates=True,
    compiled=True,
    refusals=(
        Refusal(
            combination=(("original_parameters", "False"), ("module", "partly")),
            says="uniform `requires_grad`",
        ),
    ),
)

_STRATEGIES = {
    "full": ShardingStrategy.FULL_SHARD,
    "gradients": ShardingStrategy.SHARD_GRAD_OP,
    "none": ShardingStrategy.NO_SHARD,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
}


def device_of(module: nn.Module) -> torch.device:
    """A module's device; one on the meta device gets the accelerator, or with gloo as the default backend the CPU.

    Whether the machine has an accelerator does not matter: the run may use the CPU.
    """
    found = {p.device for p in module.parameters() if not p.is_meta}
    if found:
        return found.pop()
    if dist.get_backend() == "gloo":
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_device_index())


def fully_sharded(module: nn.Module, options: WrapOptions) -> nn.Module:
    """`fully_shard`, inner units first; the module itself is changed."""
    sharding, device = _asked(options), device_of(module)
    pairs = sharding.strategy == "hybrid"
    ranks = dist.get_world_size()
    mesh = _mesh(device.type, dist.group.WORLD, (ranks // 2, 2) if pairs else (ranks,))
    ignored = {p for name, p in module.named_parameters() if name in options.ignored}
    policy = MixedPrecisionPolicy(
        param_dtype=_dtype(options.param_dtype), reduce_dtype=_dtype(options.reduce_dtype)
    )
    for name in _units(module, options):
        over = mesh
        if sharding.expert_groups and name.split(".")[0] == EXPERT:
            over = DeviceMesh.from_group(_own_group(sharding.expert_groups), device.type)
        fully_shard(
            module.get_submodule(name),
            mesh=over,
            reshard_after_forward=sharding.strategy != "gradients",
            mp_policy=policy,
            ignored_params=ignored,
        )
    units = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for one, following in itertools.pairwise(units):
        if sharding.forward_prefetch:
            one.set_modules_to_forward_prefetch([following])
        if sharding.backward_prefetch:
            following.set_modules_to_backward_prefetch([one])
    return module


def fsdp_wrapped(module: nn.Module, options: WrapOptions) -> FullyShardedDataParallel:
    """`FullyShardedDataParallel` around inner units first."""
    sharding = _asked(options)
    ignored = [p for name, p in module.named_parameters() if name in options.ignored]
    settings: dict[str, Any] = {
        "sharding_strategy": _STRATEGIES[sharding.strategy],
        "mixed_precision": MixedPrecision(
            param_dtype=_dtype(options.param_dtype), reduce_dtype=_dtype(options.reduce_dtype)
        ),
        "forward_prefetch": sharding.forward_prefetch,
        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE if sharding.backward_prefetch else None,
        "use_orig_params": sharding.original_parameters,
        "ignored_states": ignored,
        "device_id": device_of(module),
    }
    ranks = dist.get_world_size()
    if sharding.strategy == "hybrid":
        pairs = tuple((rank, rank + 1) for rank in range(0, ranks, 2))
        across = tuple(tuple(range(place, ranks, 2)) for place in (0, 1))
        settings["process_group"] = (_own_group(pairs), _own_group(across))
    for name in _units(module, options):
        if not name:
            continue
        own = dict(settings)
        if sharding.expert_groups and name.split(".")[0] == EXPERT:
            own["process_group"] = _own_group(sharding.expert_groups)
            if sharding.strategy == "hybrid":
                own["sharding_strategy"] = ShardingStrategy.FULL_SHARD
        parent, _, last = name.rpartition(".")
        setattr(
            module.get_submodule(parent),
            last,
            FullyShardedDataParallel(module.get_submodule(name), **own),
        )
    return FullyShardedDataParallel(module, **settings)


def _asked(options: WrapOptions) -> Sharding:
    assert options.sharding is not None
    return options.sharding


def _units(module: nn.Module, options: WrapOptions) -> Iterable[str]:
    sharding = _asked(options)
    units = units_of(module, sharding.nesting, ignored=options.ignored)
    return units if not sharding.expert_groups or EXPERT in units else (EXPERT, *units)


def _dtype(name: str | None) -> torch.dtype | None:
    found: torch.dtype | None = None if name is None else getattr(torch, name)
    return found


@functools.lru_cache(maxsize=8)  # groups are threads and sockets: modules wrapped alike share them
def _mesh(device_type: str, world: ProcessGroup, shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(device_type, shape, mesh_dim_names=("across", "over")[-len(shape) :])


def _own_group(groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
    """The group among these that this rank is in; every rank creates all of them."""
    world: Any = dist.group.WORLD
    return _made(world, groups)


@functools.lru_cache(maxsize=32)
def _made(world: ProcessGroup, groups: tuple[tuple[int, ...], ...]) -> ProcessGroup:
    made: Any = dist.new_subgroups_by_enumeration  # untyped
    own: ProcessGroup = made([list(group) for group in groups])[0]
    return own
