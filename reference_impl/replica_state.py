"""Makes replicas equal at the start and keeps their buffers equal: verification and broadcasts of many tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from .errors import ReplicaError

__all__ = ["broadcast", "check_devices", "verify"]


def verify(tensors: Mapping[str, Tensor], group: ProcessGroup) -> None:
    """Compare names, shapes, dtypes and gradient flags over all ranks.

    Raises:
        ReplicaError: They differ. It is raised on every rank, with the names, ranks and what they have.
    """
    told: list[Any] = [None] * dist.get_world_size(group)
    own = {name: (tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors.items()}
    dist.all_gather_object(told, own, group=group)
    wrong = []
    for name in dict.fromkeys(name for one in told for name in one):
        seen = {rank: _words(one.get(name)) for rank, one in enumerate(told)}
        if len(set(seen.values())) > 1:
            wrong.append(f"{name} is " + ", ".join(f"{what} on rank {rank}" for rank, what in seen.items()))
    if not wrong and len({tuple(one) for one in told}) > 1:
        wrong.append("the names come in another order")
    if wrong:
        raise ReplicaError("replicas of different modules cannot be synchronised: " + "; ".join(wrong))


def check_devices(tensors: Mapping[str, Tensor], device: torch.device | None) -> None:
    """Refuse tensors on several kinds of devices, or on another one than `device`.

    Raises:
        ValueError: They are; it names one tensor of each kind.
    """
    found = {tensor.device.type: f"{name} on {tensor.device}" for name, tensor in tensors.items()}
    elsewhere = device is not None and any(
        _is_elsewhere(tensor.device, device) for tensor in tensors.values()
    )
    if len(found) > 1 or elsewhere:
        wanted = "one kind of device" if device is None else f"the device {device}"
        raise ValueError(f"the module has to be on {wanted}, but has {', '.join(found.values())}")


def _is_elsewhere(there: torch.device, named: torch.device) -> bool:
    return there.type != named.type or (named.index is not None and there.index not in (None, named.index))


def _words(what: tuple[tuple[int, ...], str, bool] | None) -> str:
    if what is None:
        return "not there"
    shape, dtype, trained = what
    return f"{list(shape)} {dtype}" + ("" if trained else " without gradient")


def broadcast(tensors: Iterable[Tensor], group: ProcessGroup, *, source: int = 0) -> None:
    """Give every rank the values of rank `source` of the group, with one message per dtype and device."""
    alike: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for several in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in several])
        dist.broadcast(flat, group=group, group_src=source)
        if dist.get_rank(group) == source:
            continue  # its own values, which a pending backward may need unchanged
        for tensor, part in zip(several, torch.split(flat, [t.numel() for t in several]), strict=True):
            tensor.copy_(part.view(tensor.shape))
