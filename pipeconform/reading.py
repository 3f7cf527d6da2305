"""Reads files that others wrote: results, cases, expectations, packages and what is in them.

A file is read as a whole up to a size limit, decoded by a schema, and checked against limits that no file of ours comes
near; anything wrong with it becomes one error with one line of text.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from pipeconform.errors import PipeconformError
from pipeconform.showing import shown_line
from pipeconform.suggestions import nearest

__all__ = [
    "MOST_BYTES",
    "MOST_CASE_BYTES",
    "REFUSALS",
    "Line",
    "decoded_json",
    "file_bytes",
    "file_text",
    "unreadable",
]

_PIECE = 1 << 20
MOST_BYTES = 128 << 20
MOST_CASE_BYTES = 4 << 20
MOST_DEPTH = 64
MOST_DIGITS = 32
_MOST_BESIDE = 1000  # files that are looked through for one with a similar name
_MOST_WORDS = 300  # characters quoted from a decoder's message

T = TypeVar("T")

Line = Annotated[str, msgspec.Meta(max_length=4000, pattern=r"^[^\n]*$(?!\n)")]
"""Names and other text that is printed within a line: a line feed in it would let it print lines of its own."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NUMBER = re.compile(rb"(?<![\d.])\d{%d,}" % (MOST_DIGITS + 1))
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))

REFUSALS = (
    msgspec.MsgspecError,
    ValueError,  # text that is no UTF-8, numbers of more digits than Python reads
    RecursionError,
    OverflowError,
    MemoryError,
)
"""What decoders raise about hostile input."""


def file_bytes(path: Path, *, error: type[PipeconformError], most: int = MOST_BYTES, name: str = "") -> bytes:
    """The contents of a file; messages call it `name`.

    Raises:
        PipeconformError: an `error`, where it cannot be read or is larger than `most` bytes.
    """
    try:
        data = bytearray()
        with path.open("rb") as file:  # in pieces: Python makes room for all that it may read
            while len(data) <= most and (piece := file.read(min(_PIECE, most + 1 - len(data)))):
                data += piece
    except (OSError, ValueError) as reason:  # a name with a NUL is a ValueError
        text = getattr(reason, "strerror", None) or reason
        raise error(f"cannot read {name or path}: {text}{_meant(path)}") from None
    if len(data) > most:
        raise error(f"{name or path}: more than {most:,} bytes; pipeconform never writes one that large")
    return bytes(data)


def _meant(path: Path) -> str:
    """The files of its kind beside one that does not exist, with the nearest names, as the end of a message."""
    with contextlib.suppress(OSError, ValueError):
        if not path.exists() and path.parent.is_dir():
            every = itertools.islice(path.parent.iterdir(), _MOST_BESIDE)
            beside = [one.name for one in every if one.suffix == path.suffix and not one.is_dir()]
            near = nearest(path.name, beside)
            return f"; nearest: {', '.join(near)}" if near else ""
    return ""


def file_text(path: Path, *, error: type[PipeconformError], most: int = MOST_BYTES) -> str:
    """The text of a file, read like `file_bytes`.

    Raises:
        PipeconformError: an `error`, also if the text is not UTF-8.
    """
    try:
        return file_bytes(path, error=error, most=most).decode()
    except UnicodeDecodeError as reason:
        raise error(f"{path}: not text in UTF-8 (byte {reason.start})") from None


def decoded_json(
    data: bytes | str,
    kind: type[T],
    *,
    source: object,
    what: str,
    error: type[PipeconformError],
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Decode JSON by the schema of `kind`; messages call it `source` and say that other JSON is not `what`.

    Raises:
        PipeconformError: an `error`, if it is not JSON, does not fit the schema, or is beyond the limits.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as reason:
        raise error(f"{source}: not text in UTF-8 (character {reason.start})") from None
    try:
        found = msgspec.json.decode(raw, type=kind, dec_hook=dec_hook)
    except msgspec.ValidationError as reason:
        raise error(f"{source}: not {what}: {unreadable(reason)}") from None
    except PipeconformError as reason:  # a case that explains itself what is impossible about it
        raise error(f"{source}: {unreadable(reason)}") from None
    except REFUSALS as reason:
        if not raw.strip():
            raise error(f"{source}: empty; expected {what}") from None
        if raw.lstrip()[:1] == b"<":
            raise error(
                f"{source}: a page, not JSON; expected {what}, such as the result.json beside it"
            ) from None
        raise error(f"{source}: damaged, not JSON: {unreadable(reason)}") from None
    if text := _beyond_limits(raw):
        raise error(f"{source}: {text}")
    return found


def unreadable(reason: BaseException) -> str:
    """A decoder's message, shortened."""
    if isinstance(reason, RecursionError):
        return f"nested more than {MOST_DEPTH} deep"
    if isinstance(reason, MemoryError):
        return "it takes more memory than there is"
    return shown_line(str(reason), limit=_MOST_WORDS)


def _beyond_limits(data: bytes) -> str:
    """Why JSON that was decoded is refused all the same; empty if it is not."""
    bare = b"0".join(_STRING.split(data))
    if found := _NUMBER.search(bare):
        return f"a number of {len(found[0])} digits or more; at most {MOST_DIGITS} are read"
    brackets = bare.translate(None, delete=_NO_BRACKET)
    for _ in range(MOST_DEPTH):
        if not brackets:
            return ""
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return f"nested more than {MOST_DEPTH} deep" if brackets else ""
