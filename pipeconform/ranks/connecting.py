"""Whether the ranks of a group can exchange and add tensors of their devices: found out before the first task.

A device and a backend that do not work together are the machine's fault, and no implementation's. Communicators are
made here as well, so that their refusals are not the first task's either.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pipeconform.ranks.devices import reason_against_sharing
from pipeconform.ranks.probing import nccl_release

if TYPE_CHECKING:
    import torch

__all__ = ["NotConnectedError", "connect"]


class NotConnectedError(Exception):
    """The backend does not serve the device; the message is meant to be shown without a traceback."""


def connect(device: torch.device, *, backend: str) -> None:
    """Add one number over all ranks, and send one to the next rank; `backend` is what was asked for.

    Raises:
        NotConnectedError: the backend raised an error, or a number came out wrong.
    """
    import torch.distributed as dist

    pair = f"backend {backend!r} and device {device}"
    # a backend that takes the device's memory for the processor's ends the process, or waits for ever: its output
    # then says why
    print(f"{pair}: adding a tensor over all ranks, and sending one to the next", file=sys.stderr, flush=True)
    try:
        total, ring = _sum_of_ranks(device), _from_the_rank_before(device)
    except (RuntimeError, ValueError, TypeError) as error:
        raise NotConnectedError(f"{pair} do not work together: {error}{_advice(backend)}") from error
    size = dist.get_world_size()
    wanted = size * (size + 1) // 2, float((dist.get_rank() - 1) % size + 1)
    if (total, ring) != wanted:
        raise NotConnectedError(
            f"{pair} do not work together: the sum of 1 to {size} came out as {total:g}, and {wanted[1]:g} from "
            f"the rank before came as {ring:g}{_advice(backend)}"
        )


def _sum_of_ranks(device: torch.device) -> float:
    import torch
    import torch.distributed as dist

    value = torch.full((1,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(value)
    return value.item()


def _from_the_rank_before(device: torch.device) -> float:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = (torch.full((1,), float(n), device=device) for n in (rank + 1, 0))
    if size == 1:
        return sent.item()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, (rank + 1) % size),
            dist.P2POp(dist.irecv, received, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    return received.item()


def _advice(backend: str) -> str:
    if "nccl" in backend:
        reason = reason_against_sharing(nccl_release())
        return "" if reason is None else f". If ranks share a GPU: {reason}"
    if "gloo" in backend:
        return (
            ". Gloo sends and receives tensors of the CPU only: use the device's own backend, or --device cpu"
        )
    return ""
