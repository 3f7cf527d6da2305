"""A bounded store of executions, so that one execution serves many requirements.

It is in memory for this process, and in a folder for the other workers of a distributed run. The key says which
execution of a case is meant, so that what confirms a violation is never the execution that showed it.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from pathlib import Path
from typing import TypeVar

import msgspec

from pipeconform.writing import whole_file

__all__ = ["Store"]

T = TypeVar("T")


class Store:
    """Executions by key; the least recently used are dropped when `max_bytes` is reached."""

    def __init__(self, *, folder: Path | None = None, max_bytes: int = 256 << 20) -> None:
        self._folder, self._max_bytes, self._bytes = folder, max_bytes, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str, kind: type[T]) -> T | None:
        """The execution of type `kind` that any worker stored under `key`, or None."""
        data = self._kept.get(key)
        if data is not None:
            self._kept.move_to_end(key)
        elif self._folder is not None:
            with contextlib.suppress(OSError):
                data = (self._folder / key).read_bytes()
                self._keep(key, data)
        return None if data is None else msgspec.msgpack.decode(data, type=kind)

    def put(self, key: str, execution: object) -> None:
        """Store an execution; on a full or read-only disk it is not shared with other workers."""
        data = msgspec.msgpack.encode(execution)
        self._keep(key, data)
        if self._folder is not None:
            with contextlib.suppress(OSError), whole_file(self._folder / key) as part:
                part.write_bytes(data)

    def _keep(self, key: str, data: bytes) -> None:
        self._bytes += len(data) - len(self._kept.pop(key, b""))
        self._kept[key] = data
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)
