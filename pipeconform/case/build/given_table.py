"""The table that a plan gives, made from the order of its case."""

from __future__ import annotations

from pipeconform.adapter import Placement, placement_of
from pipeconform.case.case import Case
from pipeconform.schedule import Table, to_csv
from pipeconform.schedule.orders import some_order

__all__ = ["given_csv", "given_table"]


def given_csv(case: Case) -> str | None:
    """The table as the plan has it; None if the world of `case` has no order."""
    return None if case.world.order is None else to_csv(given_table(case))


def given_table(case: Case) -> Table:
    """The computations of a training step of `case`, whose world has an order."""
    order = case.world.order
    assert order is not None
    owners = placement_of(Placement(order.placement), num_ranks=case.num_ranks, num_stages=case.num_stages)
    return some_order(
        [min(ranks) for ranks in owners],
        num_microbatches=case.trains[0].num_microbatches,
        seed=order.seed,
        splits=order.splits,
        in_turn=order.in_turn,
    )
