"""Reads TOML files of entries that people write: ``format = 1``, then a table ``[[name]]`` for each entry.

Reading is strict: what is incomplete or unknown is refused with the line on which to change it.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from pipeconform.errors import PipeconformError
from pipeconform.reading import REFUSALS, unreadable

__all__ = ["Entry", "header_of", "read_entries"]

_FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry as written, and where it stands."""

    row: Mapping[str, Any]
    line: int
    """The line of its header."""
    source: str
    """What messages call the file."""
    error: type[PipeconformError]
    """What is raised about the entry."""
    lines: Sequence[str] = field(repr=False)
    """Those of the entry, from its header on."""

    def absent(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the fields that the entry lacks, or that are empty."""
        return tuple(name for name in names if self.row.get(name) in (None, "", []))

    def decoded(self, kind: type[T], *, required: Sequence[str], text: str = "") -> T:
        """The entry as a `kind`, with something in each of the `required` fields.

        `text` says what is needed instead, by default the `required` fields.

        Raises:
            PipeconformError: an `error`, if a required field is absent or empty, or a field is unknown or of another
                type.
        """
        absent = self.absent(required)
        if absent:
            text = text or f"every entry needs {', '.join(required)}"
            raise self.refusal(absent[0], f"the entry lacks {', '.join(absent)}; {text}")
        try:
            return msgspec.convert(self.row, kind)
        except REFUSALS as reason:
            named = re.search(r"`\$\.(\w+)|field `(\w+)`", str(reason))
            raise self.refusal((named[1] or named[2]) if named else "", unreadable(reason)) from reason

    def refusal(self, name: str, text: str) -> PipeconformError:
        """An `error` about a field, to be raised; it names the field's line."""
        return self.error(f"{self.source}:{self.line_of(name)}: {text}")

    def line_of(self, name: str) -> int:
        """The line of a field; that of the header if the entry lacks the field."""
        for number, line in enumerate(self.lines):
            if name and re.match(rf"\s*{re.escape(name)}\s*=", line):
                return self.line + number
        return self.line


def header_of(name: str) -> re.Pattern[str]:
    """What matches the line with which an entry ``[[name]]`` begins."""
    return re.compile(rf"\s*\[\[\s*{re.escape(name)}\s*\]\]\s*(#.*)?$")


def read_entries(data: bytes, *, name: str, source: str, error: type[PipeconformError]) -> tuple[Entry, ...]:
    """The entries ``[[name]]`` of a file with these contents, in order; messages call the file `source`.

    Raises:
        PipeconformError: an `error`, if it is not TOML, is of another format, or has anything but such entries.
    """
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except REFUSALS as reason:
        raise error(f"{source}: not TOML: {unreadable(reason)}") from reason
    if table.get("format") != _FORMAT:
        raise error(f"{source}:1: format {table.get('format')!r}; this version reads 'format = {_FORMAT}'")
    rows, lines = table.get(name, []), text.splitlines()
    unknown = sorted(set(table) - {"format", name})
    if unknown or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        other = unknown[0] if unknown else name
        raise error(f"{source}:{_line_of(lines, other)}: {other!r} is unknown; write entries as [[{name}]]")
    header = header_of(name)
    places = [number for number, line in enumerate(lines) if header.match(line)]
    if len(places) != len(rows):
        raise error(f"{source}: write every entry under a line [[{name}]] of its own")
    return tuple(
        Entry(row=row, line=begin + 1, source=source, error=error, lines=lines[begin:end])
        for row, (begin, end) in zip(rows, itertools.pairwise([*places, len(lines)]), strict=True)
    )


def _line_of(lines: Sequence[str], name: str) -> int:
    """The line of a table or a key of the file."""
    for number, line in enumerate(lines, start=1):
        if re.match(rf"\s*\[*\s*{re.escape(name)}\b", line):
            return number
    return 1
