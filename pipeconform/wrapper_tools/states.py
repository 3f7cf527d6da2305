"""Whole parameters and states of wrapped modules, by the names that they had before wrapping.

All functions are collective: every rank of the group must call them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pipeconform.errors import UsageError

__all__ = ["assert_equal_states", "broadcast_state_dict", "full_parameters", "zero"]

_PARTS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


def full_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Whole copies of all parameters, by the names in the module that was wrapped.

    Accepts plain modules, DDP, `fully_shard`, FSDP with original parameters, and checkpointed and compiled parts.

    Raises:
        UsageError: the module is in FSDP with flat parameters, which have no names.
    """
    _names_there(module)
    with _whole(module, writes=False):
        return {
            name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in _named(module)
        }


def zero(module: nn.Module, *, buffers: bool = False) -> None:
    """Set all parameters to zero, in place, whatever wraps them; with `buffers`, buffers as well."""
    with torch.no_grad(), _whole(module, writes=True):
        for parameter in module.parameters():
            parameter.zero_()
        for buffer in module.buffers() if buffers else ():
            buffer.zero_()


def broadcast_state_dict(
    state: Mapping[str, Any] | None, *, source: int = 0, group: ProcessGroup | None = None
) -> dict[str, Any]:
    """Broadcast the state dict of rank `source` of the group to every rank; other ranks may pass None.

    Tensors arrive on the device that they have on the source. Other values are pickled.
    """
    own = dist.get_rank(group) == source
    if own and state is None:
        raise UsageError(f"broadcast_state_dict: rank {source} is the source and gave no state dict")
    rows: list[Any] = [None]
    if own and state is not None:
        if any(isinstance(value, DTensor) for value in state.values()):
            raise UsageError("broadcast_state_dict: the state dict is sharded; gather it first")
        rows = [
            {n: _layout(v) if isinstance(v, Tensor) else ("object", v) for n, v in state.items()},
        ]
    dist.broadcast_object_list(rows, group=group, group_src=source)
    told: dict[str, Any] = {}
    for name, row in rows[0].items():
        if row[0] == "object":
            told[name] = row[1]
            continue
        _, shape, dtype, device = row
        if own and state is not None:
            tensor = state[name].detach().clone(memory_format=torch.contiguous_format)
        else:
            tensor = torch.empty(shape, dtype=dtype, device=device)
        dist.broadcast(tensor, group=group, group_src=source)
        told[name] = tensor
    return told


def assert_equal_states(module: nn.Module, *, group: ProcessGroup | None = None) -> None:
    """Assert that every parameter and buffer has the same bits on every rank; sharded ones are compared whole.

    Raises:
        AssertionError: on every rank, with name, rank, first differing element and both values.
    """
    state = {**full_parameters(module), **{_clean(n): b.detach() for n, b in module.named_buffers()}}
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, {n: t.cpu() for n, t in state.items()}, group=group)
    for rank, other in enumerate(told):
        if list(other) != list(told[0]):
            raise AssertionError(f"rank {rank} has {', '.join(other)}; rank 0 has {', '.join(told[0])}")
        for name, tensor in other.items():
            wrong = _difference(told[0][name], tensor)
            if wrong:
                raise AssertionError(f"{name} on rank {rank} differs from rank 0: {wrong}")


def _difference(first: Tensor, other: Tensor) -> str:
    if (first.shape, first.dtype) != (other.shape, other.dtype):
        return f"{other.dtype}{list(other.shape)} instead of {first.dtype}{list(first.shape)}"
    same = (first == other) | (first.isnan() & other.isnan()) if first.is_floating_point() else first == other
    if bool(same.all()):
        return ""
    where = tuple((~same).nonzero()[0].tolist())
    return (
        f"{int((~same).sum())} of {same.numel()} elements, first {list(where)}: "
        f"{other[where].item()!r} instead of {first[where].item()!r}"
    )


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return "tensor", tuple(tensor.shape), tensor.dtype, str(tensor.device)


def _named(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    for name, parameter in inner.named_parameters():
        yield _clean(name), parameter


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _PARTS)


def _fsdp(module: nn.Module) -> list[FullyShardedDataParallel]:
    return [part for part in module.modules() if isinstance(part, FullyShardedDataParallel)]


def _names_there(module: nn.Module) -> None:
    if any(not part._use_orig_params for part in _fsdp(module)):
        raise UsageError(
            "full_parameters: FSDP has no names for flat parameters; wrap with use_orig_params=True"
        )


def _whole(module: nn.Module, *, writes: bool) -> AbstractContextManager[Any]:
    if not _fsdp(module):
        return nullcontext()
    return FullyShardedDataParallel.summon_full_params(module, writeback=writes)
