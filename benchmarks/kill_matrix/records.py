"""What one run of the matrix found: one JSON line per implementation, so that a stopped run can go on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = ["FaultRecord", "MutantRecord", "append", "read"]

Record = TypeVar("Record")


class FaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, judged by the requirement it is labelled with."""

    name: str
    detected: bool
    """With the expected status, by a message that tells where."""
    control: bool
    """Whether the reference meets the requirement on the case that caught the fault."""
    shown: tuple[str, ...]
    message: str
    executions: int
    seconds: float


class MutantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant, judged by every requirement; `name` is "reference" for the reference itself."""

    name: str
    loads: bool
    """Whether it can be imported and describes itself; what cannot is no mutant."""
    requirement: str = ""
    """Which was broken first; empty for a survivor."""
    status: str = ""
    kind: str = ""
    message: str = ""
    executions: int = 0
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether some requirement was broken."""
        return bool(self.requirement)


def append(record: msgspec.Struct, path: Path) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def read(path: Path, kind: type[Record]) -> dict[str, Record]:
    """The records so far, by name; the last of a name counts."""
    lines: Iterable[bytes] = path.read_bytes().splitlines() if path.exists() else ()
    records = [msgspec.json.decode(line, type=kind) for line in lines]
    return {getattr(record, "name", ""): record for record in records}
