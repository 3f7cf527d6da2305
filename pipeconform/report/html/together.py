"""The page's view of which two claimed things were in one case."""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.plural import plural
from pipeconform.report.result import Result, Together
from pipeconform.report.together_text import together_lines

__all__ = ["TogetherView", "together_view"]


@dataclass(frozen=True, kw_only=True)
class PairView:
    """One pair: both things, under how many schedules a case had them, and the schedules that are missing."""

    first: str
    second: str
    under: str
    missing: str


@dataclass(frozen=True, kw_only=True)
class TogetherView:
    """All pairs that the claims allow."""

    words: str
    pairs: tuple[PairView, ...]


def together_view(result: Result) -> TogetherView | None:
    """The view of a result; None if no case had two things that are pairs."""
    words = "".join(together_lines(result))
    if not words:
        return None
    return TogetherView(words=words, pairs=tuple(map(_pair, result.totals.together)))


def _pair(one: Together) -> PairView:
    every = len(one.under) + len(one.not_under)
    return PairView(
        first=one.of[0],
        second=one.of[1],
        under=f"{len(one.under)} of {plural(every, 'schedule')}" if one.under else "not reached",
        missing=", ".join(one.not_under),
    )
