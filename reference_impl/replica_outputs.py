"""What a forward returns: the tensors in it, and where a backward from them can end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.distributed import rpc

from .errors import ReplicaError

__all__ = ["leaves_below", "tensors_in"]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, mappings, dataclasses and remote references to what this rank holds.

    Raises:
        ReplicaError: Another process holds it: its backward is not seen here.
    """
    inner: Iterable[Any] = ()
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, tuple | list):
        inner = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = vars(value).values()
    # not RRef, its subclass: rpc.remote() returns none
    elif rpc.is_available() and isinstance(value, rpc.PyRRef):  # type: ignore[attr-defined]
        if not value.is_owner():
            raise ReplicaError(f"an output is a remote reference to what {value.owner_name()} holds")
        inner = [value.local_value()]
    for item in inner:
        yield from tensors_in(item)


def leaves_below(outputs: Iterable[Tensor]) -> list[Any]:
    """Every leaf that a backward from `outputs` can reach."""
    waiting: list[Any] = [output.grad_fn for output in outputs]
    seen: set[Any] = {None}
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            waiting += [below for below, _ in node.next_functions]
    return [node.variable for node in seen if hasattr(node, "variable")]
