"""What torch's flight recorder knows of a rank: operations of its process groups that have not ended.

With NCCL a rank rarely waits where Python can see it: a wait only orders streams, and a kernel blocks. torch
records what was given to the backend and how far it came; this module reads the record.

The format of a dump is torch 2.13's (``torch.distributed.flight_recorder``, version 2.10 of the format): per operation
``profiling_name`` (``nccl:recv 1<-0``, ranks of the group), ``process_group`` (name and description), sizes, dtypes,
``state`` (``scheduled``, ``started``, ``completed``) and ``retired``; and the members of groups in ``pg_config``.
Gloo records its collectives in the same format, and only these have been tested; sends and receives are read as the
format describes them.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

__all__ = ["SIZE", "Flight", "flights_in", "flights_of_this_rank"]

SIZE = "TORCH_FR_BUFFER_SIZE"
"""How many operations torch records; without this variable the backend decides."""
_DUMPS = ("_dump_nccl_trace", "_dump_fr_trace")
"""The functions of torch's builds, for NCCL and for other backends; a build with NCCL has both."""
_MOST = 8
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that was given to a backend and has not ended."""

    words: str
    """``receive of float32[2, 3] from rank 1``."""
    state: Literal["scheduled", "started"]
    """Whether the backend has begun it."""
    peers: tuple[int, ...] = ()
    """The other ranks of the world that it needs; empty if the dump does not say."""
    record: int = -1
    """Its number in the dump."""

    def __str__(self) -> str:
        """The operation and how far it came."""
        return f"{self.words}, {'begun and not ended' if self.state == 'started' else 'not begun'}"


def flights_of_this_rank() -> tuple[Flight, ...]:
    """The operations that have not ended on this rank, oldest first; empty if nothing is recorded. Thread-safe."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or not ("nccl" in dist.get_backend() or SIZE in os.environ):
        return ()
    found: list[Flight] = []
    for source in (getattr(torch._C._distributed_c10d, name, None) for name in _DUMPS):
        if source is not None:
            # without stacks: formatting them needs Python's lock, for which another thread may wait
            dump = source(includeCollectives=True, includeStackTraces=False, onlyActive=False)
            found += flights_in(pickle.loads(dump), rank=dist.get_rank())  # noqa: S301 - torch's own, of this process
    return tuple(dict.fromkeys(found))[:_MOST]


def flights_in(dump: Mapping[str, Any], *, rank: int) -> tuple[Flight, ...]:
    """The operations in a dump of `rank` (of the world) that have not ended, oldest first, at most eight.

    Entries that do not fit the format are skipped: a dump explains a hang, and must not break the explanation.
    """
    groups = {name: _ranks(group) for name, group in _mapping(dump.get("pg_config")).items()}
    entries = [entry for entry in dump.get("entries") or () if isinstance(entry, Mapping)]
    open_ones = [
        one for one in entries if not one.get("retired") and one.get("state") in ("scheduled", "started")
    ]
    found = (_flight(one, groups, rank) for one in sorted(open_ones, key=lambda one: one.get("record_id", 0)))
    return tuple(one for one in found if one is not None)[:_MOST]


def _flight(entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]], rank: int) -> Flight | None:
    _, _, name = str(entry.get("profiling_name", "")).partition(":")
    kind, _, ends = name.partition(" ")
    if not kind or kind == "coalesced":  # the end of a batch, whose operations have entries of their own
        return None
    members = _members(entry, groups)
    parts = re.fullmatch(r"(\d+)(?:->|<-)(\d+)", ends)
    state = entry["state"]
    record = entry.get("record_id", -1)
    if parts is None:
        what = ", ".join(_tensors(entry, "input")) or "nothing"
        words = kind if kind == "barrier" else f"{kind} of {what}"
        return Flight(words=words, state=state, peers=tuple(r for r in members if r != rank), record=record)
    other = int(parts[2])  # the format has this rank first: ``0->1`` sends to 1, ``0<-1`` receives from 1
    peer = members[other] if other < len(members) else None
    sends = kind == "send"
    what = ", ".join(_tensors(entry, "input" if sends else "output")) or "nothing"
    end = f"rank {peer}" if peer is not None else f"rank {other} of its group"
    words = f"{'send' if sends else 'receive'} of {what} {'to' if sends else 'from'} {end}"
    return Flight(words=words, state=state, peers=() if peer is None else (peer,), record=record)


def _members(entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Ranks of the world; gloo's default group has no name in the list of members."""
    name, description = [*(entry.get("process_group") or ()), "", ""][:2]
    if name in groups:
        return groups[name]
    return groups.get("", ()) if description == "default_pg" else ()


def _ranks(group: object) -> tuple[int, ...]:
    """Parse ``"[0, 1]"``; anything else gives no ranks."""
    try:
        found = json.loads(str(_mapping(group).get("ranks", "")))
    except ValueError:
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(one, int) for one in found) else ()


def _tensors(entry: Mapping[str, Any], side: str) -> Iterator[str]:
    dtypes = [str(one) for one in entry.get(f"{side}_dtypes") or ()]
    for shape, dtype in zip(entry.get(f"{side}_sizes") or (), dtypes, strict=False):
        yield f"{_DTYPES.get(dtype, dtype.lower())}{list(shape)}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
