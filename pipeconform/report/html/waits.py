"""Who waits for whom in a hang: a box per rank, an arrow to every rank that it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeconform import svg
from pipeconform.ranks.waiting import Place, circle_of, waiting_of
from pipeconform.report.html.figure import figure
from pipeconform.showing import shown

__all__ = ["WaitsView", "waits_view"]

_BOX, _HIGH, _GAP, _MARGIN = 112, 44, 56, 8
_RISE, _STEP = 18, 9  # height of the lowest arrow above its boxes, and distance between arrows
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
    side = _RISE + max(levels.values(), default=0) * _STEP + _MARGIN
    parts = [
        part
        for a, b in arrows
        for part in _arrow(at[a], at[b], top=side, level=levels[at[a], at[b]], bad=(a, b) in links)
    ]
    for place in places:
        parts += _box(place, _MARGIN + at[place.rank] * (_BOX + _GAP), side, bad=place.rank in circle)
    width = 2 * _MARGIN + len(places) * (_BOX + _GAP) - _GAP
    return figure(
        parts,
        width=width,
        height=2 * side + _HIGH,
        title="Who waits for whom; the same in words is below",
        cls="case waiting",
    )


def _box(place: Place, x: float, y: float, *, bad: bool) -> Iterator[str]:
    signs = {"returned": "✓", "raised": "!", "died": "↯", "stuck": "∞"}
    yield svg.rect(x, y, _BOX, _HIGH, cls="stage bad" if bad else "stage", title=shown(place.waits))
    yield svg.text(f"rank {place.rank}", x + 10, y + 18, cls="stage-name")
    yield svg.text(f"{signs[place.verdict]} {place.verdict}", x + 10, y + 35, cls="small")


def _levels(arrows: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """The height of each arrow: arrows on the same side never overlap, and short ones run below long ones."""
    ordered = sorted(arrows, key=lambda arrow: abs(arrow[0] - arrow[1]))
    sides = ([one for one in ordered if one[0] < one[1]], [one for one in ordered if one[0] > one[1]])
    return {arrow: level for side in sides for level, arrow in enumerate(side)}


def _arrow(start: int, end: int, *, top: float, level: int, bad: bool) -> Iterator[str]:
    """An arrow, above the boxes to the right and below them to the left; solid and thick in the circle, else dashed."""
    right = end > start
    edge = top if right else top + _HIGH
    away = -1 if right else 1
    high = edge + away * (_RISE + level * _STEP)
    # arrows that leave a box and those that arrive use different positions along its side
    begin = _centre(start) + (18 if right else -18)
    finish = _centre(end) + (-18 if right else 18)
    cls = "waits-for bad" if bad else "waits-for"
    yield svg.line(((begin, edge), (begin, high), (finish, high), (finish, edge)), cls=cls)
    tip = edge + away * 1
    head = (
        (finish - _HEAD, tip + away * _HEAD * 1.5),
        (finish, tip),
        (finish + _HEAD, tip + away * _HEAD * 1.5),
    )
    yield svg.line(head, cls="waits-for head bad" if bad else "waits-for head")


def _centre(index: int) -> float:
    return _MARGIN + index * (_BOX + _GAP) + _BOX / 2
