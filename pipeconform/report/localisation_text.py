"""Where an error begins and how it spreads, as text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from pipeconform.observe.localisation import Deviation, Lane, Localisation
from pipeconform.plural import plural

__all__ = ["begins", "first_wrong_lines", "localisation_lines"]

_FORWARD, _LOSS, _BACKWARD = "forward", "loss", "backward"
_WHOLE = {"buffer": "buffers", "weight gradient": "weights", "parameter": "parameters"}
_NAME = max(map(len, (_FORWARD, _LOSS, _BACKWARD, *_WHOLE.values()))) + 2  # columns


def begins(found: Localisation, first: Deviation) -> str:
    """A sentence: which tensor is the first wrong one."""
    bounded = "" if found.bounded else "; no error bound could be computed, so only what is far off counts"
    return f"first wrong of {plural(found.compared, 'compared tensor')}: {first.where()}{bounded}"


def first_wrong_lines(first: Deviation, *, said: str = "") -> tuple[str, ...]:
    """The first wrong tensor and what is wrong with it; empty if `said` has both already."""
    likeness = f": {first.likeness}" if first.likeness else ""
    repeated = first.tensor in said and _plain(first.text) in _plain(said)
    return (
        *([f"{first.tensor}{likeness}"] if likeness or not repeated else ()),
        *(() if repeated else first.text.splitlines()),
    )


def localisation_lines(found: Localisation | None, *, said: str = "") -> list[str]:
    """The first wrong tensor, what is wrong with it, and where it spreads; empty if none was found or looked for.

    What `said` has already is not repeated.
    """
    if found is None or found.first is None:
        return []
    return [
        begins(found, found.first),
        *(f"  {line}" for line in first_wrong_lines(found.first, said=said)),
        f"how the error spreads in step {found.first.step}, per microbatch (= right, x wrong, . not seen):",
        *(f"  {line}" for line in _rows(found.lanes)),
    ]


def _plain(text: str) -> str:
    """A text without its indentation and line breaks."""
    return " ".join(text.split())


def _rows(lanes: Sequence[Lane]) -> Iterator[str]:
    for name, own in itertools.groupby(lanes, key=_part):
        heading = name
        for line in _collapsed(list(own)):
            yield f"{heading:<{_NAME}}{line}"
            heading = ""


def _part(lane: Lane) -> str:
    if lane.direction in _WHOLE:
        return _WHOLE[lane.direction]
    if lane.direction == "loss":
        return _LOSS
    return _FORWARD if lane.direction == "forward value" else _BACKWARD


def _collapsed(lanes: Sequence[Lane]) -> Iterator[str]:
    """A line per stage; neighbouring stages in which nothing is wrong share one."""
    stages = [(stage, list(own)) for stage, own in itertools.groupby(lanes, key=lambda lane: lane.stage)]
    for right, several in itertools.groupby(stages, key=lambda one: _is_right(one[1])):
        group = list(several)
        if right and len(group) > 1:
            yield f"stages {group[0][0]} to {group[-1][0]}: all right"
            continue
        for stage, own in group:
            yield f"stage {stage}: {'  '.join(map(_marks, own))}"


def _is_right(lanes: Iterable[Lane]) -> bool:
    return all(set(lane.marks) <= {"="} for lane in lanes)


def _marks(lane: Lane) -> str:
    side = {
        "input gradient": "in" if not lane.side else "to the caller",
        "output gradient": "out",
    }.get(lane.direction) or {"input": "in", "output": "out", "result": "returned", "": ""}[lane.side]
    return f"{side} {lane.marks}".strip()
