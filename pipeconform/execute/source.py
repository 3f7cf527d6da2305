"""Reads the source of an implementation's adapter where it is imported: in a rank process."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeconform.execute.implementation import load

if TYPE_CHECKING:
    from pipeconform.ranks.rank import RankContext

__all__ = ["Source", "answer", "file_of"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The file that defines an adapter; empty if Python cannot find it, as in an interactive session."""

    name: str = ""
    text: bytes = b""


def answer(_context: RankContext, reference: bytes) -> bytes:
    """A task for a rank process: the source of the adapter called `reference`, as MessagePack."""
    adapter = load(reference.decode())
    path = file_of(type(adapter))
    found = Source() if path is None else Source(name=path.name, text=path.read_bytes())
    return msgspec.msgpack.encode(found)


def file_of(kind: type) -> Path | None:
    """The file that a class is defined in; None if Python cannot find it."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None) or _source_of(kind)
    return Path(path) if path and Path(path).is_file() else None


def _source_of(kind: type) -> str | None:
    try:
        return inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None
