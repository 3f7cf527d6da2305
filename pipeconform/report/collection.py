"""The results below a folder, and the files there that should be results and cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.errors import BadResultError
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result, read_result

__all__ = ["Collected", "Collection", "collect", "page_of"]

_PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One result."""

    path: Path
    """The file, relative to the folder."""
    result: Result


@dataclass(frozen=True, kw_only=True)
class Collection:
    """All results below a folder, in the order of their paths."""

    results: tuple[Collected, ...]
    unreadable: tuple[str, ...]
    """Why files cannot be read that are called like a result or look like one; each message names its file."""


class _Looks(msgspec.Struct, frozen=True):
    """What a result file has and other JSON files hardly have together."""

    format: int
    cells: msgspec.Raw
    implementation: msgspec.Raw


def collect(folder: Path) -> Collection:
    """Read every result below `folder`: files called ``result.json``, and other JSON files that look like results."""
    results: list[Collected] = []
    unreadable: list[str] = []
    for path in _files(folder):
        within = path.relative_to(folder)
        try:
            if path.name == RESULT_NAME or _looks_like_one(path):
                results.append(Collected(path=within, result=read_result(path)))
        except BadResultError as error:
            unreadable.append(str(error))
    return Collection(results=tuple(results), unreadable=tuple(unreadable))


def page_of(path: Path) -> Path:
    """The page of a result file: ``report.html`` beside a ``result.json``, ``a.json.html`` beside an ``a.json``."""
    return path.with_name(_PAGE if path.name == RESULT_NAME else f"{path.name}.html")


def _files(folder: Path) -> Iterator[Path]:
    """The JSON files below a folder, without those in hidden folders."""
    for path in sorted(folder.rglob("*.json")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _looks_like_one(path: Path) -> bool:
    try:
        msgspec.json.decode(path.read_bytes(), type=_Looks)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True
