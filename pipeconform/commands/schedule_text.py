"""The text that the ``pipeconform schedule`` commands print."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from pipeconform.schedule import Delivery, Family, Simulation, Table, Violation
from pipeconform.schedule.families import Size, Stage
from pipeconform.schedule.placement import name_of
from pipeconform.schedule.table import OVERLAP_NEXT

__all__ = [
    "describe",
    "families_table",
    "family_rows",
    "path_text",
    "promise",
    "ranks_table",
    "simulation_document",
    "verdict",
    "violation_document",
]

_PATH_LEGS = 12
"""How many legs of a critical path are printed: the first and the last ones."""


def describe(table: Table) -> str:
    """A table in one line: sizes, placement, what is in it."""
    kind = "with communication" if table.has_communication else "compute-only"
    chains = f" in {table.num_chains} chains" if table.num_chains > 1 else ""
    m = table.num_microbatches * table.num_chains
    return (
        f"{_count(table.num_ranks, 'rank')}, {_count(table.num_stages, 'stage')}{chains} "
        f"({name_of(table.placement, num_ranks=table.num_ranks)}), {_count(m, 'microbatch')}, "
        f"{_count(table.num_entries, 'action')}, {kind}"
    )


def verdict(table: Table, found: Sequence[Violation], *, strictest: Delivery, family: str | None) -> str:
    """The last line of a verification: the number of violations, or what was checked."""
    if found:
        return _count(len(found), "violation")
    judged = ["completeness", "order", "placement"]
    if table.has_communication:
        deliveries = list(Delivery)
        named = [delivery.value for delivery in deliveries[: deliveries.index(strictest) + 1]]
        judged += ["sends and receives", f"deadlock under {', '.join(named)}"]
    else:
        judged.append("deadlock of the computations alone (--lower adds sends and receives)")
    if family is not None:
        judged.append(f"the order, memory and bubble of {family}")
    return f"no violation; judged: {'; '.join(judged)}"


def violation_document(violation: Violation) -> dict[str, Any]:
    """A violation as plain data."""
    return {
        "requirement": violation.rule.requirement,
        "rule": violation.rule.value,
        "delivery": violation.delivery.name.lower() if violation.delivery else None,
        "message": violation.message,
    }


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """A simulation as plain data; times in the costs' unit."""
    return {
        "makespan": simulation.makespan,
        "busy_fraction": simulation.busy_fraction,
        "ranks": _per_rank(simulation),
        "critical_path": [
            {
                "action": str(simulation.table.action_at(row)),
                "rank": _rank(simulation.table, row),
                "start": float(simulation.start[row]),
                "end": float(simulation.end[row]),
            }
            for row in simulation.critical_path()
        ],
    }


def ranks_table(simulation: Simulation) -> RichTable:
    """Per rank: work, idle time, memory."""
    out = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    out.add_column("rank", justify="right")
    for title in ("busy", "share", "idle", "idle in its span", "held to I", "held to W"):
        out.add_column(title, justify="right")
    makespan = simulation.makespan or 1.0
    for rank, row in enumerate(_per_rank(simulation)):
        times = [f"{row[name]:g}" for name in ("makespan_bubble", "span_bubble")]
        held = [str(row[name]) for name in ("peak_in_flight_input", "peak_in_flight_weight")]
        out.add_row(str(rank), f"{row['busy']:g}", f"{row['busy'] / makespan:.1%}", *times, *held)
    return out


def promise(family: Family, size: Size, simulation: Simulation) -> str | None:
    """The idle time that the family's source claims, beside the simulated one; None if the source claims none."""
    costs, bubble = simulation.costs, family.bubble
    times = [
        one for one in (costs.forward, costs.input_grad, costs.weight_grad) if isinstance(one, int | float)
    ]
    if bubble is None or len(times) < len(Stage._fields):
        return None
    cost = Stage(*times)
    free = costs.latency == 0 and costs.volume_time == 0 and costs.pair_factor == 1
    if not (free and bubble.holds(size, cost)):
        return f"{family.title} claims no idle time at this size and these costs ({bubble.formula} elsewhere)"
    idle = simulation.span_bubble if bubble.kind == "span" else simulation.makespan_bubble
    where = "between a rank's first and last action" if bubble.kind == "span" else "in the whole step"
    relation = "=" if bubble.exact else "≤"
    return (
        f"{family.title} ({family.source}): longest idle time {where} {relation} {bubble.formula} = "
        f"{bubble.bound(size, cost):g}; simulated {max(idle.tolist(), default=0.0):g}"
    )


def path_text(simulation: Simulation) -> str:
    """The critical path as text; each leg is a run of computations on one rank."""
    table, legs = simulation.table, []
    path = [row for row in simulation.critical_path() if simulation.end[row] > simulation.start[row]]
    path = [row for row in path if table.groups[row] != OVERLAP_NEXT]
    for rank, rows in itertools.groupby(path, lambda row: _rank(table, row)):
        legs.append(f"rank {rank}: {' '.join(_shortened([str(table.action_at(row)) for row in rows], 6))}")
    spent = sum(float(simulation.end[row] - simulation.start[row]) for row in path)
    waited = simulation.makespan - spent
    return (
        f"critical path ({_count(len(path), 'computation')}, {spent:g} computing, {waited:g} in transfers):\n"
        + " → ".join(_shortened(legs, _PATH_LEGS))
    )


def families_table(families: Sequence[Family]) -> RichTable:
    """All families: their names, sources and claims."""
    out = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "title", "placement", "backward", "held on rank r", "idle time", "source"):
        out.add_column(title, overflow="fold", no_wrap=title in {"name", "placement"})
    for row in family_rows(families):
        out.add_row(*row)
    return out


def family_rows(families: Sequence[Family]) -> Iterator[tuple[str, ...]]:
    """The rows of `families_table`, one per family."""
    for family in families:
        backward = "none" if family.forward_only else "I and W" if family.splits_backward else "full"
        bubble = family.bubble
        relation = "= " if bubble and bubble.exact else "≤ "
        idle = f"{bubble.kind} {relation}{bubble.formula}" if bubble else "no claim"
        row = (family.name, family.title, family.placement, backward, family.in_flight, idle, family.source)
        yield row


def _per_rank(simulation: Simulation) -> list[dict[str, Any]]:
    names = (
        "busy",
        "span",
        "makespan_bubble",
        "span_bubble",
        "peak_in_flight_input",
        "peak_in_flight_weight",
    )
    columns = [getattr(simulation, name).tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _rank(table: Table, row: int) -> int:
    return int(table.offsets.searchsorted(row, side="right")) - 1


def _shortened(words: list[str], number: int) -> list[str]:
    if len(words) <= number:
        return words
    half = number // 2
    return [*words[:half], f"… {len(words) - 2 * half} more …", *words[-half:]]


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"
