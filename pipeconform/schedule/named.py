"""Checking that a table is the schedule that it is named after, with everything that the schedule's source claims."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pipeconform.errors import BadTableError
from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.costs import Costs
from pipeconform.schedule.families import Family, Size, Stage, family
from pipeconform.schedule.simulator import simulate
from pipeconform.schedule.table import Table, without_communication
from pipeconform.schedule.verifier import PER_RULE, verify
from pipeconform.schedule.violation import Delivery, Rule, Violation

COSTS = (Stage(1, 1, 1), Stage(1, 2, 1), Stage(2, 1, 1), Stage(2, 2, 1), Stage(2, 1, 1.5))
"""Costs of F, I, W at which the bubble is compared with its bound, if the bound applies."""

_UNTIMED = {Rule.DEADLOCK, Rule.ORDER, Rule.RANGE, Rule.MATCHING, Rule.MULTISET}
"""A table that breaks one of these rules may not be simulated to its end, so its times mean nothing."""


def size_of(table: Table) -> Size:
    """p, v and m of a table.

    Raises:
        BadTableError: Its stages are not a multiple of its ranks.
    """
    per_rank, rest = divmod(table.num_stages, table.num_ranks)
    if rest:
        raise BadTableError(f"{table.num_stages} stages are not a multiple of {table.num_ranks} ranks")
    return Size(table.num_ranks, per_rank, table.num_microbatches * table.num_chains)


def verify_named(
    table: Table,
    *,
    name: str,
    strictest: Delivery = Delivery.COMMUNICATOR,
    per_rule: int | None = PER_RULE,
) -> tuple[Violation, ...]:
    """Every violation of SCH-1 to 5 and 7 by a table that is named after a family.

    This checks everything that `verify` does, the placement, the order on every rank (without sharding actions; where
    the family leaves the order of the backwards' microbatches free, any order is accepted), the in-flight bounds, and
    the bubble. ``strictest`` and ``per_rule`` are those of `verify`.

    Raises:
        UnknownNameError: There is no such family.
        UsageError: The family has no table of this size.
        BadTableError: The table's stages are not a multiple of its ranks.
    """
    schedule, size = family(name), size_of(table)
    p, v, m = size
    expected = schedule.generate(num_ranks=p, stages_per_rank=v, num_microbatches=m)
    found = verify(
        table,
        forward_only=schedule.forward_only,
        max_in_flight_input=[schedule.in_flight_input(rank, size) for rank in range(p)],
        max_in_flight_weight=[schedule.in_flight_weight(rank, size) for rank in range(p)],
        strictest=strictest,
        per_rule=per_rule,
    )
    if table.placement != expected.placement:
        text = f"its placement is {table.placement}; {name} has {expected.placement}"
        found += (Violation(Rule.PLACEMENT, text),)
    found += tuple(differences(table, expected=expected, free_backward_order=schedule.free_backward_order))
    if not any(violation.rule in _UNTIMED for violation in found):
        found += tuple(too_much_bubble(table, family=schedule, size=size))
    return found


def differences(table: Table, *, expected: Table, free_backward_order: bool = False) -> Iterator[Violation]:
    """The first place on every rank where the computations differ from the expected ones.

    Args:
        table: What was declared or observed; communication and sharding actions are ignored.
        expected: The table that should be there.
        free_backward_order: Accept any order of microbatches among a stage's backwards.
    """
    if table.num_ranks != expected.num_ranks:
        text = f"it has {table.num_ranks} ranks; {expected.num_ranks} are expected"
        yield Violation(Rule.NAMED, text)
        return
    for rank in range(table.num_ranks):
        mine, theirs = (_computations(judged, rank) for judged in (table, expected))
        for position in range(max(len(mine), len(theirs))):
            (row, got), (_, want) = (
                actions[position] if position < len(actions) else (-1, None) for actions in (mine, theirs)
            )
            if _key(got, free=free_backward_order) != _key(want, free=free_backward_order):
                told = f"{got or 'nothing'} where {want or 'nothing'} is due"
                text = f"rank {rank}, computation {position}: {told}"
                before = " ".join(str(action) for _, action in mine[max(0, position - 3) : position])
                rows = () if got is None else (row,)
                yield Violation(Rule.NAMED, f"{text}{f' (after {before})' if before else ''}", rows)
                break


def _computations(table: Table, rank: int) -> list[tuple[int, Action]]:
    """Each computation with its (first) row."""
    actions = table[rank]
    rows = itertools.accumulate((len(one.leaves) for one in actions), initial=int(table.offsets[rank]))
    return [
        (row, action)
        for row, action in zip(rows, actions, strict=False)
        if action.kind <= Kind.W or action.kind is Kind.OVERLAP_F_B
    ]


def _key(action: Action | None, *, free: bool) -> Action | None:
    if action is None or not free or action.kind not in {Kind.B, Kind.I, Kind.W}:
        return action
    return action._replace(microbatch=None)


def too_much_bubble(table: Table, *, family: Family, size: Size) -> Iterator[Violation]:
    """Where a table that can be run idles longer than its family's source allows, at those `COSTS` where that applies.

    Raises:
        BadTableError: The table cannot be run to its end.
    """
    bubble = family.bubble
    if bubble is None:
        return
    judged = without_communication(table)
    for cost in COSTS:
        if not bubble.holds(size, cost):
            continue
        costs = Costs(forward=cost.forward, input_grad=cost.input_grad, weight_grad=cost.weight_grad)
        simulation = simulate(judged, costs=costs)
        idle = simulation.span_bubble if bubble.kind == "span" else simulation.makespan_bubble
        bound = bubble.bound(size, cost)
        rank = int(idle.argmax())
        if idle[rank] > bound + 1e-9 * simulation.makespan:
            yield Violation(
                Rule.BUBBLE,
                f"rank {rank} idles {idle[rank]:g} of its {bubble.kind}; {family.name} promises "
                f"{bubble.formula} = {bound:g} for F={cost.forward:g}, I={cost.input_grad:g}, "
                f"W={cost.weight_grad:g}",
            )
