"""Known causes: findings that somebody has written up, matched by requirement and signature.

A file has one ``[[known]]`` for each finding. The package has such a file for torch; `read_known` reads a user's own.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from pipeconform.errors import BadKnownError, UnknownNameError
from pipeconform.reading import REFUSALS, file_bytes, unreadable
from pipeconform.report.result import Cell, Violation
from pipeconform.spec.wrappers import any_requirement

__all__ = ["FIELDS", "SHIPPED", "Known", "entry_of", "findings", "known_for", "read_known", "shipped"]

FIELDS = ("id", "title", "link", "requirements", "signature")
"""The fields that every entry must have."""

SHIPPED = "torch.toml"
"""The file of the package, beside this module."""

_FORMAT = 1
_MOST_BYTES = 4 << 20
_LONGEST_PATTERN = 1000
_HEADER = re.compile(r"\s*\[\[\s*known\s*\]\]\s*(#.*)?$")
_STATUSES = ("failed", "hung", "crashed", "error")


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding as written in the file."""

    id: str
    """A number or name, such as ``3``; unique in its file."""
    title: str
    """What is wrong, in one sentence without a full stop."""
    link: str
    """Where it is written up: an address, or the path of a file."""
    thread: str = ""
    """A public thread about it; empty if there is none."""
    implementation: str = ""
    """The name of the implementation that has it, as in results; empty for any."""
    requirements: tuple[str, ...]
    """The requirements that show it."""
    status: str | tuple[str, ...] = _STATUSES
    """How they are violated."""
    signature: str
    """A regular expression that is found in their signatures."""
    schedules: tuple[str, ...] = ()
    """The schedules under which it shows; empty for all."""
    chance: bool = False
    """Whether it shows in some executions only, or in different ways."""
    same_as: str = ""
    """The id of the finding of the same file that this one is another effect of; empty if none."""


class Known(_Written, frozen=True, kw_only=True):
    """One finding."""

    file: str
    """The name of its file."""

    @property
    def root(self) -> tuple[str, str]:
        """The file and the id of the finding that stands for the cause."""
        return self.file, self.same_as or self.id

    def shows(self, cell: Cell, violation: Violation) -> bool:
        """Whether this violation is what the finding describes."""
        return self.describes(
            cell.requirement,
            schedule=cell.schedule,
            status=violation.status,
            signature=violation.signature,
        )

    def describes(self, requirement: str, *, schedule: str, status: str, signature: str) -> bool:
        """Whether the finding describes that a requirement is violated in this way."""
        allowed = (self.status,) if isinstance(self.status, str) else self.status
        return (
            requirement in self.requirements
            and status in allowed
            and (not self.schedules or schedule in self.schedules)
            and re.search(self.signature, signature) is not None
        )


def entry_of(cell: Cell, violation: Violation, entries: Sequence[Known]) -> Known | None:
    """The first entry that describes the violation; None if there is none."""
    return next((entry for entry in entries if entry.shows(cell, violation)), None)


def findings(entries: Sequence[Known], known: Sequence[Known]) -> tuple[Known, ...]:
    """What `entries` belong to: findings that stand for a cause first, then those that are other effects of it."""
    roots = {entry.root for entry in entries}
    first = [entry for entry in known if (entry.file, entry.id) in roots]
    return tuple(dict.fromkeys([*first, *entries]))


def known_for(implementation: str, entries: Sequence[Known] | None = None) -> tuple[Known, ...]:
    """The entries about an implementation with this name; `entries` is by default the package's own file."""
    found = shipped() if entries is None else entries
    return tuple(entry for entry in found if entry.implementation in ("", implementation))


@functools.cache
def shipped() -> tuple[Known, ...]:
    """The entries of the package's own file."""
    text = resources.files(__package__).joinpath(SHIPPED).read_text("utf-8")
    return _entries(text, source=SHIPPED)


def read_known(path: Path) -> tuple[Known, ...]:
    """Read and validate a file of known causes.

    Raises:
        BadKnownError: the file cannot be read, is not TOML, or has an incomplete or wrong entry; the message names the
            line and what to change there.
    """
    data = file_bytes(path, error=BadKnownError, most=_MOST_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadKnownError(f"{path}: not TOML: {unreadable(error)}") from error
    return _entries(text, source=str(path))


def _entries(text: str, *, source: str) -> tuple[Known, ...]:
    try:
        table = tomllib.loads(text)
    except REFUSALS as error:
        raise BadKnownError(f"{source}: not TOML: {unreadable(error)}") from error
    if table.get("format") != _FORMAT:
        raise BadKnownError(
            f"{source}:1: format {table.get('format')!r}; this version reads 'format = {_FORMAT}'"
        )
    rows, lines = table.get("known", []), text.splitlines()
    unknown = sorted(set(table) - {"format", "known"})
    if unknown or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        name = unknown[0] if unknown else "known"
        raise BadKnownError(f"{source}: {name!r} is unknown; write entries as [[known]]")
    places = [number for number, line in enumerate(lines, start=1) if _HEADER.match(line)]
    if len(places) != len(rows):
        raise BadKnownError(f"{source}: write every entry under a line [[known]] of its own")
    seen: dict[str, int] = {}
    found: list[Known] = []
    for row, place in zip(rows, places, strict=True):
        entry = _entry(row, source=source, lines=lines, line=place)
        if entry.id in seen:
            raise BadKnownError(f"{source}:{place}: the id {entry.id!r} was taken on line {seen[entry.id]}")
        seen[entry.id] = place
        found.append(entry)
    roots = {entry.id for entry in found if not entry.same_as}
    for entry in found:
        if entry.same_as and entry.same_as not in roots:
            place = _line_of_field(lines, seen[entry.id], "same_as")
            raise BadKnownError(
                f"{source}:{place}: same_as {entry.same_as!r} is not the id of an entry without a same_as"
            )
    return tuple(found)


def _entry(row: dict[str, Any], *, source: str, lines: list[str], line: int) -> Known:
    def refuse(field: str, text: str) -> BadKnownError:
        return BadKnownError(f"{source}:{_line_of_field(lines, line, field)}: {text}")

    absent = [field for field in FIELDS if row.get(field) in (None, "", [])]
    if absent:
        raise refuse(absent[0], f"the entry lacks {', '.join(absent)}; every entry needs {', '.join(FIELDS)}")
    try:
        entry = msgspec.convert(row, _Written)
    except REFUSALS as error:
        named = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        raise refuse((named[1] or named[2]) if named else "", unreadable(error)) from error
    statuses = (entry.status,) if isinstance(entry.status, str) else entry.status
    for status in statuses:
        if status not in _STATUSES:
            raise refuse("status", f"status {status!r} is not one of {', '.join(_STATUSES)}")
    if entry.thread and not _is_address(entry.thread):
        raise refuse("thread", f"thread {entry.thread!r} is not a link; expected https://…")
    if not _is_address(entry.link) and not re.fullmatch(r"[\w./-]+", entry.link):
        raise refuse("link", f"link {entry.link!r} is neither a link (https://…) nor the path of a file")
    try:
        names = tuple(any_requirement(name).id for name in entry.requirements)
    except UnknownNameError as error:
        raise refuse("requirements", str(error)) from error
    try:
        if len(entry.signature) > _LONGEST_PATTERN:
            raise refuse("signature", f"a pattern of more than {_LONGEST_PATTERN} characters")
        re.compile(entry.signature)
    except (re.error, OverflowError, RecursionError) as error:
        raise refuse("signature", f"{entry.signature!r} is not a regular expression: {error}") from error
    fields = msgspec.structs.asdict(entry) | {"requirements": names}
    return Known(**fields, file=source)


def _is_address(text: str) -> bool:
    return re.fullmatch(r"https?://\S+", text) is not None


def _line_of_field(lines: list[str], begin: int, field: str) -> int:
    """The line of `field` in the entry that begins on line `begin`; `begin` if the entry lacks the field."""
    for number in range(begin, len(lines)):
        if _HEADER.match(lines[number]):
            break
        if field and re.match(rf"\s*{re.escape(field)}\s*=", lines[number]):
            return number + 1
    return begin
