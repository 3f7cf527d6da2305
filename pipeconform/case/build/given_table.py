"""The table that a plan gives, made from the order of its case."""

from __future__ import annotations

from pipeconform.adapter import Placement, placement_of
from pipeconform.case.build.spoiled import spoiled
from pipeconform.case.case import Case
from pipeconform.case.misplans import TABLES
from pipeconform.schedule import Table, to_csv
from pipeconform.schedule.orders import some_order

__all__ = ["given_csv", "given_table"]


def given_csv(case: Case) -> str | None:
    """The table as the plan has it, with the case's mistake; None if the world of `case` has no order."""
    if case.world.order is None:
        return None
    table, misplan = given_table(case), case.world.misplan
    return to_csv(table if misplan is None or misplan.how not in TABLES else spoiled(table, misplan))


def given_table(case: Case) -> Table:
    """The computations of a right training step of `case`, whose world has an order."""
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
