"""Who waits for whom in a hang: a box per rank, an arrow to every rank that it waits for.

The boxes stand below one another, so that the last rank is in sight on a narrow screen, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeconform import svg
from pipeconform.ranks.waiting import Place, circle_of, waiting_of
from pipeconform.report.html.figure import figure
from pipeconform.showing import shown

__all__ = ["WaitsView", "waits_view"]

_BOX, _HIGH, _GAP, _MARGIN = 132, 40, 16, 8
_OUT, _STEP = 18, 12  # distance of the nearest arrow from its boxes, and between arrows
_SHIFT = 9  # arrows that leave a box and those that arrive use different heights of its side
_HEAD = 5
_MOST_RANKS = 16
_MOST_ARROWS = 3
"""The most arrows: a rank in a collective waits for all others. If there are more, only the circle is drawn."""


@dataclass(frozen=True, kw_only=True)
class WaitsView:
    """The picture, and the same in words."""

    picture: Markup | None
    lines: tuple[str, ...]
    stacks: tuple[tuple[str, str], ...]
    """The label and the Python stack of each stuck rank."""


def waits_view(places: Sequence[Place]) -> WaitsView | None:
    """The view of a hang; None if it is not known who waits for whom."""
    stuck = {place.rank: place for place in places if place.verdict == "stuck"}
    words = waiting_of(places)
    if not words:
        return None
    return WaitsView(
        picture=_draw(places, circle_of(stuck)) if len(places) <= _MOST_RANKS else None,
        lines=tuple(shown(words).splitlines()),
        stacks=tuple((f"rank {rank}", shown(place.stack)) for rank, place in stuck.items() if place.stack),
    )


def _draw(places: Sequence[Place], circle: Sequence[int]) -> Markup:
    at = {place.rank: index for index, place in enumerate(places)}
    links = set(zip(circle, (*circle[1:], *circle[:1]), strict=True))
    arrows = [
        (place.rank, peer)
        for place in places
        for peer in place.waits_for
        if peer in at
        and peer != place.rank
        and (len(place.waits_for) <= _MOST_ARROWS or (place.rank, peer) in links)
    ]
    levels = _levels([(at[a], at[b]) for a, b in arrows])
    side = _OUT + max(levels.values(), default=0) * _STEP + _MARGIN
    parts = [
        part
        for a, b in arrows
        for part in _arrow(at[a], at[b], left=side, level=levels[at[a], at[b]], bad=(a, b) in links)
    ]
    for place in places:
        parts += _box(place, side, _top(at[place.rank]), bad=place.rank in circle)
    return figure(
        parts,
        width=2 * side + _BOX,
        height=_top(len(places)) - _GAP + _MARGIN,
        title="Who waits for whom; the same in words is below",
        cls="case waiting",
    )


def _box(place: Place, x: float, y: float, *, bad: bool) -> Iterator[str]:
    signs = {"returned": "✓", "raised": "!", "died": "↯", "stuck": "∞"}
    yield svg.rect(x, y, _BOX, _HIGH, cls="stage bad" if bad else "stage", title=shown(place.waits))
    yield svg.text(f"rank {place.rank}", x + 10, y + 25, cls="stage-name")
    yield svg.text(
        f"{signs[place.verdict]} {place.verdict}", x + _BOX - 10, y + 25, cls="small", anchor="end"
    )


def _levels(arrows: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """How far out each arrow runs: no two overlap, and short ones run inside long ones."""
    found: dict[tuple[int, int], int] = {}
    for start, end in sorted(arrows, key=lambda arrow: abs(arrow[0] - arrow[1])):
        low, high = min(start, end), max(start, end)
        taken = {
            level
            for (a, b), level in found.items()
            if (a < b) == (start < end) and min(a, b) < high and low < max(a, b)
        }
        found[start, end] = next(level for level in range(len(arrows)) if level not in taken)
    return found


def _arrow(start: int, end: int, *, left: float, level: int, bad: bool) -> Iterator[str]:
    """An arrow, right of the boxes downwards and left of them upwards; solid and thick in the circle, else dashed."""
    down = end > start
    edge = left + _BOX if down else left
    away = 1 if down else -1
    out = edge + away * (_OUT + level * _STEP)
    begin = _middle(start) + (_SHIFT if down else -_SHIFT)
    finish = _middle(end) + (-_SHIFT if down else _SHIFT)
    cls = "waits-for bad" if bad else "waits-for"
    yield svg.line(((edge, begin), (out, begin), (out, finish), (edge, finish)), cls=cls)
    tip = edge + away * 1
    head = (
        (tip + away * _HEAD * 1.5, finish - _HEAD),
        (tip, finish),
        (tip + away * _HEAD * 1.5, finish + _HEAD),
    )
    yield svg.line(head, cls="waits-for head bad" if bad else "waits-for head")


def _top(index: int) -> float:
    return _MARGIN + index * (_HIGH + _GAP)


def _middle(index: int) -> float:
    return _top(index) + _HIGH / 2
