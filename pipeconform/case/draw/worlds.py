"""Draws the processes of a case without replicas: a pipeline, perhaps among bystanders."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.case.case import World
from pipeconform.case.draw.drawing import Drawing

__all__ = ["alone", "bystanding"]


def alone(d: Drawing) -> World:
    """A world that consists of the pipeline."""
    return World(size=d.num_ranks, pipeline_ranks=tuple(range(d.num_ranks)))


def bystanding(d: Drawing, table: Sequence[int] = (0, 0, 0, 1, 2, 2)) -> World:
    """A world with a number of bystanders from `table`, if there is room; the pipeline may then start above rank 0."""
    p = d.num_ranks
    room = d.limits.max_ranks - p
    if not d.capabilities.sub_groups or room < 1:
        return alone(d)
    extra = d.pick([min(number, room) for number in table])
    if not extra:
        return alone(d)
    size = p + extra
    starts = [tuple(range(extra, size))]
    if size >= 2 * p:
        starts.append(tuple(range(1, 2 * p, 2)))
    if p > 1:
        starts.append((0, *range(extra + 1, size)))
    return World(size=size, pipeline_ranks=d.pick(starts))
