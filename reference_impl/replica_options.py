"""The options of `data_parallel`: how replicas are synchronised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from .replica_precision import MixedPrecision

__all__ = ["Options"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How replicas are synchronised.

    `find_unused` lets parameters go without a gradient: one that no replica has stays unchanged, one that some have is
    averaged with zeros. With `static_graph` the first pass finds out which parameters get gradients, and how often.
    """

    bucket_mib: float = 25.0
    first_bucket_mib: float = 1.0
    rebuild_buckets: bool = True
    """Whether the second pass adopts the order in which gradients arrived in the first."""
    find_unused: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    buffer_hook: Callable[[Mapping[str, Tensor], ProcessGroup], None] | None = None
    """Synchronises buffers instead of the broadcast."""
    buffers_when: Literal["before_forward", "after_forward"] = "before_forward"
    ignored: frozenset[str] = frozenset()
    """Parameters and buffers, by name, that are left to the user."""
    mixed_precision: MixedPrecision | None = None
    delayed: frozenset[str] = frozenset()
    """Parameters whose reduction begins after that of all others, when the gradients of these are there."""
    device: torch.device | None = None
    """The device that the module must be on; None for any, if it is only one kind of device."""
