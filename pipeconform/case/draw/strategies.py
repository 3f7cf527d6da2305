"""Hypothesis strategies for cases within the limits that an implementation claims.

Every choice is an index into one of our tables, smallest first: Hypothesis shrinks toward the smallest case, and
constants that it mines from loaded modules cannot change a corpus.

A *focus* names what a case is about; its subject adds that and little else, so that a failing case shows what broke.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from pipeconform.case.case import Case
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.drawing import Drawing, Pick
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import ScheduleClaim

__all__ = ["cases", "picking"]

T = TypeVar("T")


def cases(
    limits: Limits, schedule: ScheduleClaim, focus: Focus, *, turn: int | None = None
) -> st.SearchStrategy[Case]:
    """Cases of one focus under one schedule, within `limits`.

    If the subject has members, cases of the one whose `turn` it is, or of any.

    Raises:
        ValueError: the focus is not claimed; ask `is_claimed` first.
    """
    if not is_claimed(focus, schedule, limits.capabilities):
        raise ValueError(f"{focus} is not claimed under {schedule.name}")

    @st.composite
    def drawn(draw: st.DrawFn) -> Case:
        drawing = Drawing(picking(draw), limits, schedule)
        drawing.turn = turn
        return draw_case(drawing, SUBJECTS[focus])

    return drawn()


def picking(draw: st.DrawFn) -> Pick:
    """Let Hypothesis choose; shrinks toward the first entry of every table."""

    def pick(table: Sequence[T]) -> T:
        kinds = () if isinstance(table, range) else tuple(map(type, table))
        try:
            strategy = _sampled(table if isinstance(table, range) else tuple(table), kinds)
        except TypeError:  # an entry cannot be hashed
            strategy = st.sampled_from(table)
        entry: T = draw(strategy)
        return entry

    return pick


@functools.lru_cache(maxsize=1 << 12)
def _sampled(table: Sequence[T], kinds: tuple[type, ...]) -> st.SearchStrategy[T]:
    """One strategy for each table: what Hypothesis finds out about a new one takes longer than drawing from it.

    Ranges stay ranges, and `kinds` tells 1 from True: what is drawn depends on which tables Hypothesis takes for equal.
    """
    return st.sampled_from(table)
