"""Find deadlocks and prove them: the shortest circle of ranks that wait for one another."""

from __future__ import annotations

import bisect
from collections import deque

from pipeconform.schedule.actions import RECEIVES, SENDS, Kind
from pipeconform.schedule.batches import has_batches, waiting_with_batches
from pipeconform.schedule.dependencies import Index, Needs, mates, needs
from pipeconform.schedule.progress import run_programs
from pipeconform.schedule.violation import Delivery, Rule, Violation
from pipeconform.schedule.waiting import Waiting, pair_conflict, waiting


def deadlocks(index: Index, *, strictest: Delivery = Delivery.ORDERED) -> tuple[Violation, ...]:
    """One violation per delivery, from the strictest to be judged on, that keeps the table from its end.

    What one delivery forbids the next one forbids too, so a table that passes the strictest passes all.
    A table without communication is judged by its computations alone.
    """
    needed = needs(index)
    if not index.table.has_communication:
        found = _deadlock(index, needed, Delivery.BUFFERED)
        return (Violation(found.rule, found.message, found.rows),) if found else ()
    violations = []
    deliveries = (Delivery.ORDERED, Delivery.SYNCHRONOUS, Delivery.BUFFERED)
    for delivery in deliveries[deliveries.index(strictest) :]:
        found = _deadlock(index, needed, delivery)
        if not found:
            break
        violations.append(found)
    return tuple(violations)


def explain_stuck(index: Index) -> str | None:
    """Why a table cannot be run even with buffered sends; None if nothing stands in its way."""
    found = _deadlock(index, needs(index), Delivery.BUFFERED)
    return None if found is None else found.message


def _deadlock(index: Index, needed: Needs, delivery: Delivery) -> Violation | None:
    if has_batches(index.table):
        graph = waiting_with_batches(index, needed, delivery=delivery)
    else:
        if delivery is Delivery.ORDERED and (conflict := pair_conflict(index)):
            return conflict
        graph = waiting(index, needed, delivery=delivery)
    position, done = run_programs(graph.offsets, graph.one, graph.two)
    stuck = {k: node for k, node in enumerate(position) if node < graph.offsets[k + 1]}
    if not stuck:
        return None
    circle = _shortest_circle(graph, stuck, done)
    sentences = [_because(index, graph, node, need) for node, need in circle]
    rows = tuple(node for node, _ in circle if node < index.table.num_entries)
    return Violation(Rule.DEADLOCK, "; ".join(sentences), rows, delivery)


def _shortest_circle(graph: Waiting, stuck: dict[int, int], done: bytearray) -> list[tuple[int, int]]:
    """The shortest circle of (node that cannot start, node it waits for), from the lowest program on."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for program, node in stuck.items():
        targets = [need for need in (graph.one[node], graph.two[node]) if need >= 0 and not done[need]]
        edges[program] = [(need, bisect.bisect_right(graph.offsets, need) - 1) for need in targets]
    best: list[tuple[int, int]] = []
    for origin in sorted(stuck):
        found = _circle_from(origin, edges, stuck, shorter_than=len(best))
        if found:
            best = found
        if len(best) == 1:
            break
    return best


def _circle_from(
    origin: int, edges: dict[int, list[tuple[int, int]]], stuck: dict[int, int], *, shorter_than: int
) -> list[tuple[int, int]]:
    """Breadth first from one program back to itself; empty if there is no circle, or no shorter one."""
    came: dict[int, tuple[int, int]] = {}
    depth = {origin: 0}
    todo = deque([origin])
    while todo:
        program = todo.popleft()
        if shorter_than and depth[program] + 1 >= shorter_than:
            break
        for need, target in edges[program]:
            if target == origin:
                circle = [(stuck[program], need)]
                while program != origin:
                    program, earlier = came[program]
                    circle.append((stuck[program], earlier))
                return circle[::-1]
            if target not in depth:
                depth[target] = depth[program] + 1
                came[target] = (program, need)
                todo.append(target)
    return []


def _because(index: Index, graph: Waiting, node: int, need: int) -> str:
    """One sentence of the proof: what cannot go on, and what it waits for."""
    table, ranks = index.table, index.ranks
    if node >= table.num_entries:
        return _transfer_because(index, graph, node, need)
    action, rank = table.action_at(node), int(ranks[node])
    verb = "finish" if action.kind in SENDS else "start"
    if need >= table.num_entries:
        send = _transfer(index, graph, need)
        return f"rank {rank} cannot {verb} {action} because the transfer {send} is not served"
    other, owner = table.action_at(need), int(ranks[need])
    if owner == rank:
        return f"rank {rank} cannot {verb} {action} because its own {other} comes later"
    if other.kind in RECEIVES:
        reason = f"rank {owner} has not posted {other}"
    elif other.kind in SENDS:
        reason = f"rank {owner} has not sent {other}"
    else:
        reason = f"rank {owner} has not run {other}"
    return f"rank {rank} cannot {verb} {action} because {reason}"


def _transfer_because(index: Index, graph: Waiting, node: int, need: int) -> str:
    send = _transfer(index, graph, node)
    if need >= index.table.num_entries:
        other = _transfer(index, graph, need)
        return f"the transfer {send} is not served because {other} is before it between the two ranks"
    row = _send_of(index, graph, node)
    ends = (row, int(mates(index)[row]))
    end = next(row for row in ends if index.ranks[row] == index.ranks[need])
    held = index.table.action_at(end)
    return f"the transfer {send} is not served because rank {index.ranks[need]} has not come to {held}"


def _send_of(index: Index, graph: Waiting, node: int) -> int:
    return graph.sends[bisect.bisect_right(graph.offsets, node) - 1 - index.table.num_ranks]


def _transfer(index: Index, graph: Waiting, node: int) -> str:
    table, row = index.table, _send_of(index, graph, node)
    send = table.action_at(row)
    to = table.placement[send.stage + (1 if send.kind is Kind.SEND_F else -1)]
    return f"{send} (rank {index.ranks[row]} to rank {to})"
