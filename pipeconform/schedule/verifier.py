"""Checking a table without running it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pipeconform.errors import UsageError
from pipeconform.schedule import rules
from pipeconform.schedule.actions import Kind
from pipeconform.schedule.deadlock import deadlocks
from pipeconform.schedule.dependencies import locate
from pipeconform.schedule.sharding import sharding_kept
from pipeconform.schedule.table import Table
from pipeconform.schedule.violation import Delivery, Violation

PER_RULE = 5
"""The default limit of reported findings per check; the last one says how many more there are."""


def verify(
    table: Table,
    *,
    forward_only: bool = False,
    communication: bool | None = None,
    max_in_flight_input: Sequence[int] | None = None,
    max_in_flight_weight: Sequence[int] | None = None,
    strictest: Delivery = Delivery.COMMUNICATOR,
    per_rule: int | None = PER_RULE,
) -> tuple[Violation, ...]:
    """Every violation of SCH-1, 3, 5 and 7 that the table shows; empty for a correct table.

    Args:
        table: The table, with or without communication.
        forward_only: The table only evaluates: it must have no backward.
        communication: Whether sends and receives must be there; None checks them if there are any.
        max_in_flight_input: For each rank, a bound on (stage, microbatch) pairs held between F and I (or B).
        max_in_flight_weight: For each rank, a bound on those held between F and W (or B).
        strictest: The strictest delivery under which the table must not deadlock; it then does not deadlock under
            laxer ones either.
        per_rule: The most findings to report per check, at least 1; None reports all.

    Raises:
        UsageError: The bounds are not one per rank.
    """
    index = locate(table)
    checks: list[Iterator[Violation]] = [
        rules.numbers_in_range(index),
        rules.placement_kept(index),
        rules.computations_complete(index, forward_only=forward_only),
        rules.order_within_stage(index),
        rules.order_between_local_stages(index),
        sharding_kept(index),
    ]
    if table.has_communication if communication is None else communication:
        checks.append(rules.transfers_matched(index, forward_only=forward_only))
        checks.append(rules.transfers_in_order(index))
    checks.append(rules.waits_matched(index))
    for bounds, until in ((max_in_flight_input, Kind.I), (max_in_flight_weight, Kind.W)):
        if bounds is not None:
            if len(bounds) != table.num_ranks:
                raise UsageError(f"{len(bounds)} in-flight bounds given for {table.num_ranks} ranks")
            checks.append(rules.in_flight_bounded(index, bounds=bounds, until=until))
    found = [violation for check in checks for violation in _shortened(check, per_rule)]
    return (*found, *deadlocks(index, strictest=strictest))


def _shortened(violations: Iterator[Violation], number: int | None) -> Iterator[Violation]:
    shown = list(itertools.islice(violations, number))
    if more := sum(1 for _ in violations):
        last = shown[-1]
        shown[-1] = Violation(last.rule, f"{last.message} (and {more} more)", last.rows, last.delivery)
    yield from shown
