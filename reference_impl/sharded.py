"""A sharded data-parallel wrapper: every rank keeps a part of the parameters, gradients and optimizer states.

The module is cut into *units* (`pipeconform.sharding.units_of`). What happens to a unit in a training step:

1. Before its forward its parameters are gathered (`Shard.unshard`) and put into its modules as plain tensors.
2. After it they are taken out. With strategy ``full`` autograd saves only notes of them (`_Saved`), so
   their memory is free.
3. When the backward needs one of them, the unit is gathered again.
4. When the gradient of the whole is there, it is reduced to the mean, of which each rank keeps its part.

With prefetching, gathering a unit begins when the one before it (in the backward: after it) is there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from pipeconform.sharding import EXPERT, Sharding, units_of

from .deferred import materialise, own_device
from .errors import ReplicaError
from .replica_state import broadcast
from .shards import Groups, Shard

__all__ = ["Sharded", "Unit"]


@dataclasses.dataclass(frozen=True)
class _Saved:
    """A note of a piece of a unit's whole parameters that autograd saved: where it is, not its values."""

    unit: Unit
    shard: Shard
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class Unit:
    """A part of the module that is gathered together."""

    def __init__(self, module: nn.Module, shards: list[Shard], root: Sharded) -> None:
        self.module, self.shards, self.root = module, shards, root
        self._before: list[ExitStack] = []
        module.register_forward_pre_hook(self._pre_forward)
        module.register_forward_hook(self._post_forward, always_call=True)

    def _pre_forward(self, module: nn.Module, args: object) -> None:
        stack = ExitStack()
        self._before.append(stack)
        root = self.root
        root.arrived(self)
        for shard in self.shards:
            for slot, view in shard.views(synchronises=root.synchronises, done=self.reduced):
                for owner, name in slot.owners:
                    owner.__dict__[name] = view
        if root.frees:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
        root.prefetch(self, 1, root.sharding.forward_prefetch)

    def _post_forward(self, module: nn.Module, args: object, output: object) -> None:
        self._before.pop().close()
        for shard in self.shards:
            for slot in shard.slots:
                for owner, name in slot.owners:
                    owner.__dict__.pop(name, None)
        if self.root.frees:
            self.reshard()

    def begin_gathering(self) -> None:
        """Request the parameters."""
        for shard in self.shards:
            shard.begin_gathering()

    def reshard(self) -> None:
        """Free the whole parameters."""
        for shard in self.shards:
            shard.reshard()

    def reduced(self, shard: Shard) -> None:
        """Record that a backward has finished with the parameters in a shard."""
        if self.root.frees:
            shard.reshard()

    def _pack(self, tensor: Tensor) -> Tensor | _Saved:
        memory = tensor.untyped_storage().data_ptr()
        for shard in self.shards:
            if memory and memory == shard.unshard().untyped_storage().data_ptr():
                return _Saved(self, shard, int(tensor.storage_offset()), tensor.shape, tensor.stride())
        return tensor

    def _unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        whole = saved.shard.unshard()
        saved.unit.root.prefetch(saved.unit, -1, saved.unit.root.sharding.backward_prefetch)
        return whole.as_strided(saved.shape, saved.stride, saved.offset)


class Sharded:
    """`module`, sharded over the default group; called like it."""

    shard_class: type[Shard] = Shard

    def __init__(
        self,
        module: nn.Module,
        sharding: Sharding,
        *,
        ignored: Iterable[str] = (),
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        """Cut the module into units and keep this rank's part of each.

        Raises:
            ReplicaError: The ranks cannot be grouped as asked for; on every rank.
        """
        self.module, self.sharding, self.synchronises = module, sharding, True
        self.param_dtype, self.reduce_dtype = param_dtype, reduce_dtype
        self.frees = sharding.strategy in ("full", "hybrid")
        self._ignored = frozenset(ignored)
        self._kept = {n: p for n, p in module.named_parameters() if n in self._ignored}
        firsts = {id(p): name for name, p in module.named_parameters()}
        every = module.named_parameters(remove_duplicate=False)
        self._firsts = {name: firsts[id(p)] for name, p in every}
        """For each name of a parameter, the first of its names."""
        self._names = tuple(module.state_dict())
        groups, expert_groups = self._groups(), self._expert_groups()
        units = units_of(module, sharding.nesting, ignored=self._ignored)
        if expert_groups is not None and EXPERT not in units:
            units = (EXPERT, *units)
        self._order: list[Unit] = []
        """In the order of their first forwards."""
        self._groups_of = {
            name: expert_groups if expert_groups and name.split(".")[0] == EXPERT else groups
            for name in units
        }
        self.units: list[Unit] = []
        """None while the module is on the meta device."""
        self._on_meta = any(parameter.is_meta for parameter in module.parameters())
        if not self._on_meta:
            self.units = [self._unit(name, groups) for name, groups in self._groups_of.items()]

    def materialise(self, device: torch.device | None = None) -> None:
        """Give memory and values to a module on the meta device, unit by unit; each rank keeps its part.

        Raises:
            ReplicaError: A part has no ``reset_parameters()``.
        """
        for name, groups in self._groups_of.items():
            part = self.module.get_submodule(name)
            materialise(part, device=device or own_device())
            made = (*part.named_parameters(), *part.named_buffers())
            shared = [t for n, t in made if f"{name}.{n}".lstrip(".") not in self._ignored]
            for group in (groups.over, groups.across):
                if group is not None:
                    broadcast(shared, group)
            self.units.append(self._unit(name, groups))
        self._kept = {n: p for n, p in self.module.named_parameters() if n in self._ignored}
        self._on_meta = False

    def _groups(self) -> Groups:
        world, ranks = dist.group.WORLD, dist.get_world_size()
        match self.sharding.strategy:
            case "none":
                return Groups(over=None, across=world)
            case "hybrid":
                if ranks % 2:
                    raise ReplicaError(
                        f"strategy hybrid shards over pairs of ranks, and {ranks} ranks are not pairs; "
                        f"use an even number of ranks, or strategy full"
                    )
                pairs = [[rank, rank + 1] for rank in range(0, ranks, 2)]
                return Groups(
                    over=_own_group(pairs), across=_own_group([list(r) for r in zip(*pairs, strict=True)])
                )
        return Groups(over=world, across=None)

    def _expert_groups(self) -> Groups | None:
        if not self.sharding.expert_groups:
            return None
        every = sorted(rank for group in self.sharding.expert_groups for rank in group)
        if every != list(range(dist.get_world_size())):
            raise ReplicaError(
                f"expert_groups {self.sharding.expert_groups} do not name each of {dist.get_world_size()} ranks once"
            )
        own = _own_group([list(group) for group in self.sharding.expert_groups])
        return (
            Groups(over=None, across=own)
            if self.sharding.strategy == "none"
            else Groups(over=own, across=None)
        )

    def _unit(self, prefix: str, groups: Groups) -> Unit:
        """Take the parameters below `prefix` that belong to no unit yet."""
        alike: dict[object, dict[str, nn.Parameter]] = {}
        owners: dict[str, list[tuple[nn.Module, str]]] = {}
        names: dict[int, str] = {}
        dot = f"{prefix}." if prefix else ""
        for path, owner in self.module.named_modules(remove_duplicate=False):
            for name, parameter in list(owner._parameters.items()):
                full = f"{path}.{name}".lstrip(".")
                if parameter is None or full in self._ignored or not full.startswith(dot):
                    continue
                first = names.setdefault(id(parameter), full)
                owners.setdefault(first, []).append((owner, name))
                if first == full:
                    alike.setdefault((parameter.requires_grad, parameter.dtype), {})[full] = parameter
        shards = [
            self.shard_class(
                parameters,
                {name: tuple(owners[name]) for name in parameters},
                groups,
                one_by_one=self.sharding.original_parameters,
                param_dtype=self.param_dtype,
                reduce_dtype=self.reduce_dtype,
                offload=self.sharding.offload,
            )
            for parameters in alike.values()
        ]
        for several in owners.values():
            for owner, name in several:
                del owner._parameters[name]
        return Unit(self.module.get_submodule(prefix), shards, self)

    def __call__(self, *args: Any) -> Any:
        """Run the forward, with this rank's own data."""
        if self._on_meta:
            raise ReplicaError("parameters are on the meta device: call materialise() before a forward")
        for unit in self.units:
            unit.reshard()  # the optimizer changed the parts since
        cast = self.param_dtype
        given = [a.to(cast) if cast and isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return self.module(*given)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards in here add up on each rank; the next pass outside reduces the sum."""
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    def arrived(self, unit: Unit) -> None:
        """Record that a unit's forward begins."""
        if unit not in self._order:
            self._order.append(unit)

    def prefetch(self, unit: Unit, way: int, wanted: bool) -> None:
        """Begin to gather the next unit, or (−1) the one before."""
        place = self._order.index(unit) + way
        if wanted and 0 <= place < len(self._order):
            self._order[place].begin_gathering()

    # ------------------------------------------------------------------ results

    @property
    def shards(self) -> list[Shard]:
        """The shards of all units."""
        return [shard for unit in self.units for shard in unit.shards]

    def parameters(self) -> list[nn.Parameter]:
        """The parameters for an optimizer: this rank's parts, and the ignored ones."""
        return [*(m for shard in self.shards for m in shard.masters.values()), *self._kept.values()]

    def state(self) -> dict[str, Tensor]:
        """Whole parameters and buffers by name; every rank calls it."""
        whole = {n: t for shard in self.shards for n, t in shard.named(shard.gathered(shard.part))}
        return {**whole, **self._kept, **dict(self.module.named_buffers())}

    def full_state(self) -> dict[str, Tensor]:
        """The module's state dict as without sharding; every rank calls it."""
        whole = self.state()
        return {name: whole[self._firsts.get(name, name)] for name in self._names}

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        """Load such a state dict, saved with any number of ranks; every rank has the whole of it."""
        for shard in self.shards:
            shard.load(state)
        self.module.load_state_dict({name: state[name] for name in self.module.state_dict()})

    def gradients(self) -> dict[str, Tensor | None] | None:
        """Whole mean gradients by name; None while some have only added up."""
        if any(shard.pending is not None for shard in self.shards):
            return None
        whole = {n: g for shard in self.shards for n, g in shard.whole_gradients().items()}
        return {**whole, **{name: p.grad for name, p in self._kept.items()}}


def _own_group(groups: list[list[int]]) -> ProcessGroup | None:
    """The group among these that this rank is in; None if it is alone there. Every rank creates all of them."""
    own = _made(dist.group.WORLD, tuple(map(tuple, groups)))
    return own if own is not None and own.size() > 1 else None


@functools.lru_cache(maxsize=32)  # groups are threads and sockets: modules wrapped alike share them
def _made(world: ProcessGroup, groups: tuple[tuple[int, ...], ...]) -> ProcessGroup | None:
    own: ProcessGroup | None
    own, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups])  # type: ignore[no-untyped-call]
    return own
