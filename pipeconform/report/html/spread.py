"""Where an error begins and how it spreads, as a table of a page."""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.observe.localisation import Lane, Localisation
from pipeconform.plural import plural
from pipeconform.report.localisation_text import begins, first_wrong_lines
from pipeconform.showing import shown

__all__ = ["Mark", "Row", "SpreadView", "spread_view"]

_WORDS = {"=": ("right", "=", "right"), "x": ("wrong", "✗", "wrong"), ".": ("blank", "·", "not seen")}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One tensor of one microbatch, or of all together."""

    key: str
    """``right``, ``wrong`` or ``blank``."""
    symbol: str
    words: str
    first: bool


@dataclass(frozen=True, kw_only=True)
class Row:
    """One place in the data flow."""

    name: str
    stage: int
    marks: tuple[Mark, ...]
    whole: bool
    """Whether its single mark stands for all microbatches."""


@dataclass(frozen=True, kw_only=True)
class SpreadView:
    """The first wrong tensor, and the step in which it is."""

    sentence: str
    lines: tuple[str, ...]
    """The tensor and what is wrong with it, unless the violation's message says so."""
    caption: str
    microbatches: int
    rows: tuple[Row, ...]
    note: str
    """How many tensors are wrong, of how many."""


def spread_view(found: Localisation | None, *, said: str = "") -> SpreadView | None:
    """The view of a localisation, without what `said` has already; None if no wrong tensor was found or looked for."""
    if found is None or found.first is None:
        return None
    first = found.first
    rows: list[Row] = []
    for lane in found.lanes:
        begun = any(mark.first for row in rows for mark in row.marks)
        rows.append(_row(lane, microbatch=first.microbatch, begun=begun))
    verb = "is" if found.wrong == 1 else "are"
    return SpreadView(
        sentence=begins(found, first),
        lines=tuple(map(shown, first_wrong_lines(first, said=said))),
        caption=f"How the error spreads in step {first.step}, in the order of the data flow",
        microbatches=max(len(lane.marks) for lane in found.lanes),
        rows=tuple(rows),
        note=f"{plural(found.wrong, 'tensor')} of {found.compared:,} {verb} wrong, over all steps.",
    )


def _row(lane: Lane, *, microbatch: int | None, begun: bool) -> Row:
    whole = lane.direction in ("weight gradient", "buffer", "parameter") or (
        lane.side == "result" and lane.direction == "input gradient"
    )
    marks = []
    for k, letter in enumerate(lane.marks):
        key, symbol, words = _WORDS[letter]
        first = letter == "x" and not begun and (whole or k == microbatch)
        words += ", the first" if first else ""
        marks.append(Mark(key=key, symbol=symbol, words=words, first=first))
    side = {"input": "input", "output": "output", "result": "given to the caller", "": ""}[lane.side]
    name = (
        f"{side} (forward)" if lane.direction == "forward value" and lane.side != "result" else lane.direction
    )
    if lane.side == "result":
        name = f"{'output' if lane.direction == 'forward value' else lane.direction} {side}"
    return Row(name=name, stage=lane.stage, marks=tuple(marks), whole=whole)
