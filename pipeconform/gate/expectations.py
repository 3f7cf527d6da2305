"""The expectations file: failures that are known, each with a reason, an owner and an end.

Reading is strict. An entry that is incomplete or cannot be understood is refused with its line, because an
expectation nobody can explain hides the next defect.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from pipeconform.case.any_case import AnyCase, decode_any_case
from pipeconform.errors import BadCaseError, BadExpectationsError, UnknownNameError
from pipeconform.reading import MOST_CASE_BYTES, REFUSALS, file_bytes, unreadable
from pipeconform.spec import standard_versions
from pipeconform.spec.wrappers import any_requirement

__all__ = [
    "EXPECTATIONS_NAME",
    "FIELDS",
    "Expectation",
    "ExpectationsFile",
    "StoredCase",
    "read_expectations",
    "require_sane_clock",
]

EXPECTATIONS_NAME = "pipeconform-expectations.toml"
_FORMAT = 1
_MOST_BYTES = 16 << 20
FIELDS = ("requirement", "status", "signature", "reason", "issue", "owner", "expires")
"""What every entry says."""

_HEADER = re.compile(r"\s*\[\[\s*expect\s*\]\]\s*(#.*)?$")
_SLACK = datetime.timedelta(days=1)  # clocks of other time zones

ExpectedStatus = Literal["failed", "hung", "crashed", "error"]


class StoredCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case that showed an expected failure, and the file it is kept in, relative to the expectations."""

    path: str
    case: AnyCase


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry as it stands in the file."""

    requirement: str
    status: ExpectedStatus
    signature: str
    reason: str
    issue: str
    owner: str
    expires: datetime.date
    schedules: tuple[str, ...] = ()
    p: tuple[int, ...] = ()
    v: tuple[int, ...] = ()
    device: str = ""
    cases: tuple[str, ...] = ()


class Expectation(_Written, frozen=True, kw_only=True):
    """One expected failure; `schedules`, `p`, `v` and `device` say where, and mean everywhere when empty."""

    file: str
    line: int
    stored: tuple[StoredCase, ...] = ()

    @property
    def label(self) -> str:
        """The entry's place: ``pipeconform-expectations.toml:12``."""
        return f"{self.file}:{self.line}"

    def is_about(self, *, requirement: str, schedule: str, device: str) -> bool:
        """Whether the entry speaks of this requirement under this schedule on this device."""
        return (
            requirement == self.requirement
            and (not self.schedules or schedule in self.schedules)
            and self.device in ("", device)
        )

    def covers_size(self, *, num_ranks: int, stages_per_rank: int) -> bool:
        """Whether the entry speaks of this p and v."""
        return (not self.p or num_ranks in self.p) and (not self.v or stages_per_rank in self.v)


class ExpectationsFile(msgspec.Struct, frozen=True, kw_only=True):
    """All expectations of one file, in its order."""

    name: str
    digest: str
    """The SHA-256 of the file's contents."""
    entries: tuple[Expectation, ...]


def read_expectations(path: Path) -> ExpectationsFile:
    """Read and validate an expectations file and the cases it names.

    Raises:
        BadExpectationsError: it cannot be read, is not TOML, or an entry is incomplete or wrong; the message
            gives the line and what to change there.
    """
    data = file_bytes(path, error=BadExpectationsError, most=_MOST_BYTES)
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except REFUSALS as error:
        raise BadExpectationsError(f"{path}: not TOML: {unreadable(error)}") from error
    if table.get("format") != _FORMAT:
        raise BadExpectationsError(
            f"{path}:1: format {table.get('format')!r}; this version reads 'format = {_FORMAT}'"
        )
    rows = table.get("expect", [])
    unknown = sorted(set(table) - {"format", "expect"})
    if unknown or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        name = unknown[0] if unknown else "expect"
        raise BadExpectationsError(
            f"{path}:{_line_of(text, name)}: {name!r} is not understood; entries are written as [[expect]]"
        )
    places = [n for n, line in enumerate(text.splitlines(), start=1) if _HEADER.match(line)]
    if len(places) != len(rows):
        raise BadExpectationsError(f"{path}: write every entry under a line [[expect]] of its own")
    entries = tuple(
        _entry(row, path=path, lines=text.splitlines(), line=line)
        for row, line in zip(rows, places, strict=True)
    )
    return ExpectationsFile(name=path.name, digest=hashlib.sha256(data).hexdigest(), entries=entries)


def require_sane_clock(today: datetime.date) -> None:
    """Refuse a clock that stands before this version of the standard: no entry would ever expire.

    Raises:
        BadExpectationsError: it does.
    """
    newest = standard_versions()[0]
    if today < newest.date - _SLACK:
        raise BadExpectationsError(
            f"the clock of this machine says {today}, but standard {newest.version} is of {newest.date}: "
            f"expiry dates cannot be judged; set the clock"
        )


def _entry(row: dict[str, Any], *, path: Path, lines: list[str], line: int) -> Expectation:
    def refuse(field: str, text: str) -> BadExpectationsError:
        return BadExpectationsError(f"{path}:{_line_of_field(lines, line, field)}: {text}")

    absent = [field for field in FIELDS if row.get(field) in (None, "")]
    if absent:
        raise refuse(absent[0], f"the entry lacks {', '.join(absent)}; every entry says {', '.join(FIELDS)}")
    try:
        written = msgspec.convert(row, _Written)
    except REFUSALS as error:
        named = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        raise refuse((named[1] or named[2]) if named else "", unreadable(error)) from error
    try:
        known = any_requirement(written.requirement).id
    except UnknownNameError as error:
        raise refuse("requirement", str(error)) from error
    if not re.match(r"https?://\S+$", written.issue):
        raise refuse("issue", f"issue {written.issue!r} is not a link; expected https://…")
    stored = []
    for name in written.cases:
        try:
            data = file_bytes(
                path.parent / name, error=BadCaseError, most=MOST_CASE_BYTES, name=f"the case {name}"
            )
            case = decode_any_case(data, source=name)
        except BadCaseError as error:
            raise refuse("cases", str(error)) from error
        stored.append(StoredCase(path=name, case=case))
    fields = msgspec.structs.asdict(written) | {"requirement": known}
    return Expectation(**fields, file=path.name, line=line, stored=tuple(stored))


def _line_of_field(lines: list[str], begin: int, field: str) -> int:
    """The line of `field` in the entry that begins on line `begin`; that line itself if it has none."""
    for number in range(begin, len(lines)):
        if _HEADER.match(lines[number]):
            break
        if field and re.match(rf"\s*{re.escape(field)}\s*=", lines[number]):
            return number + 1
    return begin


def _line_of(text: str, name: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"\s*\[*\s*{re.escape(name)}\b", line):
            return number
    return 1
