"""Where an exception came from: the chain of frames from the call that was judged to the line that raised."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import msgspec

__all__ = ["Frame", "chain_lines", "frames_of", "is_harness", "raised_at", "ranks_in_words"]

_MOST_KEPT = 48
_MOST_SHOWN = 12
_LONGEST_SOURCE = 160  # characters of a line of source
_PACKAGE = "pipeconform."
_NOT_OURS = ("pipeconform.adapters.", "pipeconform.reference_impl.")
"""Modules of the package that are judged and do not judge."""


class Frame(msgspec.Struct, frozen=True):
    """One call on the way to the line that raised."""

    module: str
    file: str
    line: int
    function: str
    source: str = ""
    """The text of that line."""


def is_harness(frame: Frame) -> bool:
    """Whether the frame is the harness's: what runs cases, and the modules and losses of cases."""
    return frame.module.startswith(_PACKAGE) and not frame.module.startswith(_NOT_OURS)


def frames_of(error: BaseException, root: BaseException | None = None) -> tuple[Frame, ...]:
    """The frames from the first call outside the harness to where `error`, or its cause `root`, was raised.

    The traceback of a cause begins where it was caught: the frames that led there are taken from `error`.
    """
    chain = list(_walked(error))
    if root is not None and root is not error:
        inner = list(_walked(root))
        place = next(
            (i for i in reversed(range(len(chain))) if inner and _same(chain[i], inner[0])), len(chain)
        )
        chain = chain[:place] + inner
    while chain and is_harness(chain[0]):
        del chain[0]
    if len(chain) > _MOST_KEPT:
        chain = chain[: _MOST_KEPT // 2] + chain[-_MOST_KEPT // 2 :]
    return tuple(chain)


def _walked(error: BaseException) -> Iterator[Frame]:
    trace = error.__traceback__
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        try:
            source = linecache.getline(code.co_filename, trace.tb_lineno, names).strip()
        except Exception:  # a module's loader may do anything
            source = ""
        yield Frame(
            module=str(names.get("__name__", "")),
            file=code.co_filename,
            line=trace.tb_lineno or 0,
            function=code.co_name,
            source=source[:_LONGEST_SOURCE],
        )
        trace = trace.tb_next


def _same(one: Frame, other: Frame) -> bool:
    return (one.file, one.function) == (other.file, other.function)


def raised_at(chains: Mapping[int, tuple[Frame, ...]]) -> str:
    """Where ranks raised, by rank, each chain of frames once for all ranks that took it; empty if none is known."""
    ranks: dict[tuple[Frame, ...], list[int]] = {}
    for rank, frames in chains.items():
        if frames:
            ranks.setdefault(frames, []).append(rank)
    return "\n".join(
        "\n".join([f"{ranks_in_words(members)} raised at", *(f"  {line}" for line in chain_lines(frames))])
        for frames, members in ranks.items()
    )


def ranks_in_words(ranks: Iterable[int]) -> str:
    """The ranks in words: ``rank 0``, ``ranks 0, 2``."""
    several = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(several) > 1)} {', '.join(several)}"


def chain_lines(frames: Iterable[Frame]) -> list[str]:
    """Two lines per frame; the harness's frames are folded, and the middle of a long chain is left out."""
    parts: list[list[str]] = []
    for ours, group in groupby(frames, key=is_harness):
        several = list(group)
        if ours:
            parts.append([f"… {len(several)} frame{'s' * (len(several) > 1)} of pipeconform"])
        else:
            parts += [_lines(frame) for frame in several]
    if len(parts) > _MOST_SHOWN:
        left_out = [f"… {len(parts) - _MOST_SHOWN} frames left out"]
        parts = [*parts[: _MOST_SHOWN // 3], left_out, *parts[_MOST_SHOWN // 3 - _MOST_SHOWN :]]
    return [line for part in parts for line in part]


def _lines(frame: Frame) -> list[str]:
    where = f"{_short(frame.file)}, line {frame.line}, in {frame.function}"
    return [where, f"  {frame.source}"] if frame.source else [where]


def _short(file: str) -> str:
    """A path from its package on, or the file with its folder."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return file.rpartition(mark)[2]
    return "/".join(file.split("/")[-2:])
