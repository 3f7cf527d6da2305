"""Orders of computing that are not the schedule's, as data."""

from __future__ import annotations

from typing import Literal

from pipeconform.case.strict import Strict

__all__ = ["Order"]


class Order(Strict, frozen=True, kw_only=True):
    """An order of the user's own: the plan has a table that `pipeconform.schedule.orders.some_order` makes.

    Where the stages are and whether backwards may be in two parts is as the schedule's claim has it.
    """

    seed: int
    in_turn: bool = True
    """Whether every stage takes the microbatches from 0 to m-1."""
    placement: Literal["loop", "v"] = "loop"
    splits: bool = False
    """Whether about half of the backwards are in two parts."""
