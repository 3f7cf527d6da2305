"""A file of what a long measurement has found by name, a line each, so that it can go on and its diffs can be read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = ["keep", "kept"]

T = TypeVar("T")


def kept(file: Path, kind: type[T]) -> dict[str, T]:
    """What a file holds, by name; nothing if there is no such file.

    Raises:
        msgspec.DecodeError: the file is something else.
    """
    return msgspec.json.decode(file.read_bytes(), type=dict[str, kind]) if file.exists() else {}  # type: ignore[valid-type]


def keep(found: Mapping[str, object], file: Path) -> None:
    """Write the file, a line for each name; whoever is interrupted keeps the old one."""
    lines = [
        f"{msgspec.json.encode(name).decode()}: {msgspec.json.encode(one).decode()}"
        for name, one in sorted(found.items())
    ]
    part = file.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    part.replace(file)
