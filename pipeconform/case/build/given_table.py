"""The table that a plan gives, made from the order of its case."""

from __future__ import annotations

from pipeconform.adapter import ScheduleClaim, placement_of
from pipeconform.case.case import Case
from pipeconform.schedule import Table, to_csv
from pipeconform.schedule.orders import some_order

__all__ = ["given_csv", "given_table"]


def given_csv(case: Case, claim: ScheduleClaim) -> str | None:
    """The table as the plan has it; None if the world of `case` has no order."""
    return None if case.world.order is None else to_csv(given_table(case, claim))


def given_table(case: Case, claim: ScheduleClaim) -> Table:
    """The computations of a training step of `case`, whose world has an order, under a schedule with this claim."""
    order, owners = (
        case.world.order,
        placement_of(claim.placement, num_ranks=case.num_ranks, num_stages=case.num_stages),
    )
    assert order is not None
    return some_order(
        [min(ranks) for ranks in owners],
        num_microbatches=case.trains[0].num_microbatches,
        seed=order.seed,
        splits=claim.split_backward and claim.split_weights == "all",
        in_turn=order.in_turn,
    )
