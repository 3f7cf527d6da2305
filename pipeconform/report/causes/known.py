"""Known causes: findings that somebody has written up, matched by requirement and signature.

A file has one ``[[known]]`` for each finding. The package has such files for torch and other engines
(`SHIPPED`); `read_known` reads a user's own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from pipeconform.entries import Entry, read_entries
from pipeconform.errors import BadKnownError, UnknownNameError
from pipeconform.reading import file_bytes
from pipeconform.report.result import Cell, Violation
from pipeconform.spec.wrappers import any_requirement

__all__ = ["FIELDS", "SHIPPED", "Known", "entry_of", "findings", "known_for", "read_known", "shipped"]

FIELDS = ("id", "title", "link", "requirements", "signature")
"""The fields that every entry must have."""

SHIPPED = (
    "torch.toml",
    "deepspeed.toml",
    "megatron.toml",
    "colossalai.toml",
    "dualpipe.toml",
    "torchgpipe.toml",
    "nanotron.toml",
    "olmo-core.toml",
    "automodel.toml",
    "internevo.toml",
    "torchtitan.toml",
    "picotron.toml",
    "zero-bubble.toml",
    "apex.toml",
    "accelerate.toml",
)
"""The files of the package, beside this module."""

_MOST_BYTES = 4 << 20
_LONGEST_PATTERN = 1000
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
    """The name of the implementation that has it, as in results, which those that are built on it have, too; empty for
    any."""
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


def known_for(names: Sequence[str], entries: Sequence[Known] | None = None) -> tuple[Known, ...]:
    """The entries about any implementation, then those about each of these names in turn.

    `entries` are by default those of the package's own files.
    """
    found = shipped() if entries is None else entries
    return tuple(
        entry for name in dict.fromkeys(("", *names)) for entry in found if entry.implementation == name
    )


@functools.cache
def shipped() -> tuple[Known, ...]:
    """The entries of the package's own files."""
    folder = resources.files(__package__)
    return tuple(
        entry for name in SHIPPED for entry in _entries(folder.joinpath(name).read_bytes(), source=name)
    )


def read_known(path: Path) -> tuple[Known, ...]:
    """Read and validate a file of known causes.

    Raises:
        BadKnownError: the file cannot be read, is not TOML, or has an incomplete or wrong entry; the message names the
            line and what to change there.
    """
    data = file_bytes(path, error=BadKnownError, most=_MOST_BYTES)
    return _entries(data, source=str(path))


def _entries(data: bytes, *, source: str) -> tuple[Known, ...]:
    seen: dict[str, Entry] = {}
    found: list[Known] = []
    for written in read_entries(data, name="known", source=source, error=BadKnownError):
        known = _known(written)
        if known.id in seen:
            raise BadKnownError(
                f"{source}:{written.line}: the id {known.id!r} was taken on line {seen[known.id].line}"
            )
        seen[known.id] = written
        found.append(known)
    roots = {known.id for known in found if not known.same_as}
    for known in found:
        if known.same_as and known.same_as not in roots:
            raise seen[known.id].refusal(
                "same_as", f"same_as {known.same_as!r} is not the id of an entry without a same_as"
            )
    return tuple(found)


def _known(entry: Entry) -> Known:
    written = entry.decoded(_Written, required=FIELDS)
    statuses = (written.status,) if isinstance(written.status, str) else written.status
    for status in statuses:
        if status not in _STATUSES:
            raise entry.refusal("status", f"status {status!r} is not one of {', '.join(_STATUSES)}")
    if written.thread and not _is_address(written.thread):
        raise entry.refusal("thread", f"thread {written.thread!r} is not a link; expected https://…")
    if not _is_address(written.link) and not re.fullmatch(r"[\w./-]+", written.link):
        text = f"link {written.link!r} is neither a link (https://…) nor the path of a file"
        raise entry.refusal("link", text)
    try:
        names = tuple(any_requirement(name).id for name in written.requirements)
    except UnknownNameError as error:
        raise entry.refusal("requirements", str(error)) from error
    try:
        if len(written.signature) > _LONGEST_PATTERN:
            raise entry.refusal("signature", f"a pattern of more than {_LONGEST_PATTERN} characters")
        re.compile(written.signature)
    except (re.error, OverflowError, RecursionError) as error:
        text = f"{written.signature!r} is not a regular expression: {error}"
        raise entry.refusal("signature", text) from error
    fields = msgspec.structs.asdict(written) | {"requirements": names}
    return Known(**fields, file=entry.source)


def _is_address(text: str) -> bool:
    return re.fullmatch(r"https?://\S+", text) is not None
