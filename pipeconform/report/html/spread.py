"""Where an error begins and how it spreads, as a table of a page."""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.observe.localisation import Lane, Localisation
from pipeconform.report.localisation_text import begins
from pipeconform.report.words import plural
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
    tensor: str
    lines: tuple[str, ...]
    caption: str
    microbatches: int
    rows: tuple[Row, ...]
    note: str
    """How many tensors are wrong, of how many."""


def spread_view(found: Localisation | None) -> SpreadView | None:
    """The view of a localisation; None if there is none."""
    if found is None:
        return None
    first = found.first
    if first is None:
        return SpreadView(
            sentence=begins(found), tensor="", lines=(), caption="", microbatches=0, rows=(), note=""
        )
    rows: list[Row] = []
    for lane in found.lanes:
        begun = any(mark.first for row in rows for mark in row.marks)
        rows.append(_row(lane, microbatch=first.microbatch, begun=begun))
    likeness = f": {first.likeness}" if first.likeness else ""
    verb = "is" if found.wrong == 1 else "are"
    return SpreadView(
        sentence=begins(found),
        tensor=shown(f"{first.tensor}{likeness}"),
        lines=tuple(shown(first.text).splitlines()),
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
