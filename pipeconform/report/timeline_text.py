"""An executed timeline as text, with a pointer to the first wrong computation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pipeconform.errors import BadTableError
from pipeconform.schedule import Action, Table, simulate
from pipeconform.schedule.drawing import Cell, cells, draw_lines

__all__ = ["table_of", "timeline_lines"]


def timeline_lines(
    timeline: Sequence[Sequence[str]] | None, *, first_wrong: tuple[int, int] | None, width: int
) -> list[str]:
    """A violation's `timeline` as a drawing with a caption; empty where it was not observed.

    Lengths are schematic (F, I and W take 1, B takes 2), and so are times: a computation that waits for one of another
    rank is drawn after it. An impossible order, in which something ran before what it needs, is drawn without gaps.
    """
    if timeline is None or not any(timeline):
        return []
    ranks = [[Action.parse(text) for text in actions] for actions in timeline]
    num_stages = 1 + max(action.stage for actions in ranks for action in actions)
    try:
        drawn, how = list(cells(simulate(table_of(ranks, num_stages=num_stages)))), ""
    except BadTableError:
        drawn, how = list(_without_gaps(ranks)), ", every rank without its waits"
    pointed = "" if first_wrong is None else "; ^ the first wrong one"
    picture = draw_lines(drawn, num_ranks=len(ranks), width=width, mark=first_wrong)
    return [f"the computations that ran, per pipeline rank{how}{pointed}:", *picture]


def table_of(ranks: Sequence[Sequence[Action]], *, num_stages: int) -> Table:
    """The table that ran; a stage is placed on the first rank that ran it.

    Raises:
        BadTableError: no table has these actions.
    """
    owner: dict[int, int] = {}
    for rank, actions in enumerate(ranks):
        for action in actions:
            owner.setdefault(action.stage, rank)
    return Table.build(
        ranks,
        placement=[owner.get(stage, 0) for stage in range(num_stages)],
        num_microbatches=1 + max((one.microbatch or 0 for actions in ranks for one in actions), default=0),
    )


def _without_gaps(ranks: Sequence[Sequence[Action]]) -> Iterator[Cell]:
    for rank, actions in enumerate(ranks):
        lengths = [2.0 if action.kind.name == "B" else 1.0 for action in actions]
        starts = itertools.accumulate(lengths, initial=0.0)
        for action, start, length in zip(actions, starts, lengths, strict=False):
            yield Cell(rank, action.kind, action.stage, action.microbatch or 0, start, start + length, part=0)
