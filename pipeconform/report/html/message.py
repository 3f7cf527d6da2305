"""Parsing a violation's message and its ranks' verdicts for the page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeconform.ranks.waiting import waiting_of
from pipeconform.report.result import Violation
from pipeconform.showing import shown

__all__ = ["Comparison", "Message", "RankVerdict", "message_of", "verdicts_of"]

_ROW = re.compile(r"  (expected|actual|distance|bound)\s+(.*)")
_VERDICT = re.compile(r"rank +(\d+)  (\w+) *(.*)")
_FIRST = "<- first failure"
_STACK = re.compile(r"(Current thread|Thread) 0x|Traceback \(most recent call last\)|  File \"")
_RAISED = re.compile(r"ranks? [\d, ]+ raised at$")
_MOST_LINES = 200
_MOST_CHARACTERS = 12_000


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Expected and actual value of the first element that differs, and their distance."""

    title: str
    """Which element, out of how many: ``value differs at [0, 1], the first of 3 of 12``."""
    expected: str
    actual: str
    same: int
    """The length of the common prefix."""
    notes: tuple[tuple[str, str], ...]
    """Distance and bound, if known."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A violation's message in parts."""

    headline: str
    lines: tuple[str, ...]
    """The lines after the headline, without comparison, verdicts and stacks."""
    comparison: Comparison | None
    stack: str
    """The stack of a stuck rank, a traceback, or where each rank raised."""
    left_out: int
    """The number of lines that only the result file has."""

    @property
    def stack_name(self) -> str:
        """What `stack` is called."""
        return "Where it was raised" if _RAISED.match(self.stack.partition("\n")[0]) else "Stack"


@dataclass(frozen=True, kw_only=True)
class RankVerdict:
    """How one rank of the world ended."""

    rank: str
    word: str
    """``returned``, ``raised``, ``died`` or ``stuck``."""
    detail: str
    first: bool
    """Whether this rank failed first."""


def message_of(violation: Violation) -> Message:
    """Parse a violation's message, without the verdicts and the place, which the page shows separately."""
    text = violation.message
    for told in (violation.verdicts, waiting_of(violation.places)):
        if told:
            text = text.replace(told, "")
    kept, left_out = _cut(shown(text).strip("\n").splitlines())
    kept = [line for line in kept if line.strip()]
    begin = next((at for at, line in enumerate(kept) if _STACK.match(line) or _RAISED.match(line)), len(kept))
    words, stack = kept[:begin], kept[begin:]
    headline, *rest = words or [violation.signature]
    comparison, rest = _comparison(rest)
    return Message(
        headline=headline,
        lines=tuple(rest),
        comparison=comparison,
        stack="\n".join(stack),
        left_out=left_out,
    )


def _cut(lines: list[str]) -> tuple[list[str], int]:
    """As many lines as fit on a page, and how many are left out."""
    kept: list[str] = []
    room = _MOST_CHARACTERS
    for line in lines[:_MOST_LINES]:
        if room <= 0:
            break
        kept.append(line if len(line) <= room else line[:room] + " …")
        room -= len(line)
    return kept, len(lines) - len(kept)


def _comparison(lines: list[str]) -> tuple[Comparison | None, list[str]]:
    """The first comparison among `lines`, and the lines that are not part of it."""
    for at in range(1, len(lines)):
        rows: dict[str, str] = {}
        end = at
        while end < len(lines) and (match := _ROW.fullmatch(lines[end])) and match[1] not in rows:
            rows[match[1]] = match[2]
            end += 1
        if {"expected", "actual"} <= rows.keys():
            expected, actual = rows.pop("expected"), rows.pop("actual")
            return (
                Comparison(
                    title=lines[at - 1],
                    expected=expected,
                    actual=actual,
                    same=_alike(expected, actual),
                    notes=tuple(rows.items()),
                ),
                lines[: at - 1] + lines[end:],
            )
    return None, lines


def _alike(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def verdicts_of(violation: Violation) -> tuple[RankVerdict, ...]:
    """One entry per rank of the world; a line in another form is kept as it is."""
    found = []
    for line in shown(violation.verdicts).splitlines():
        match = _VERDICT.fullmatch(line)
        if match is None:
            found.append(RankVerdict(rank="", word="", detail=line, first=False))
            continue
        detail = match[3].removesuffix(_FIRST).strip()
        found.append(
            RankVerdict(rank=match[1], word=match[2], detail=detail, first=match[3].endswith(_FIRST))
        )
    return tuple(found)
