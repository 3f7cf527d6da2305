"""Find deadlocks and prove them: the shortest circle of ranks that wait for one another."""

from __future__ import annotations

from pipeconform.schedule.actions import RECEIVES, SENDS, WAITED_FOR
from pipeconform.schedule.circles import shortest_circle
from pipeconform.schedule.dependencies import Index, Needs, awaited_sends, mates, needs
from pipeconform.schedule.violation import Delivery, Rule, Violation
from pipeconform.schedule.waiting import Waiting, waiting


def deadlocks(index: Index, *, strictest: Delivery = Delivery.COMMUNICATOR) -> tuple[Violation, ...]:
    """One violation per delivery, from `strictest` on, under which the table deadlocks.

    Each delivery allows everything that stricter ones allow, so a table that passes the strictest passes all. A table
    without communication is judged by its computations alone.
    """
    needed = needs(index)
    if not index.table.has_communication:
        found = _deadlock(index, needed, Delivery.BUFFERED)
        return (Violation(found.rule, found.message, found.rows),) if found else ()
    violations = []
    deliveries = list(Delivery)
    for delivery in deliveries[deliveries.index(strictest) :: -1]:
        found = _deadlock(index, needed, delivery)
        if not found:
            break
        violations.append(found)
    return tuple(violations)


def explain_stuck(index: Index) -> str | None:
    """Why a table cannot be run even with buffered sends; None if it can."""
    found = _deadlock(index, needs(index), Delivery.BUFFERED)
    return None if found is None else found.message


def _deadlock(index: Index, needed: Needs, delivery: Delivery) -> Violation | None:
    graph = waiting(index, needed, delivery=delivery)
    circle = shortest_circle(graph.offsets.tolist(), graph.one.tolist(), graph.two.tolist())
    if circle is None:
        return None
    sentences = [_because(index, graph, node, need) for node, need in circle]
    rows = tuple(node for node, _ in circle if node < index.table.num_entries)
    return Violation(Rule.DEADLOCK, "; ".join(sentences), rows, delivery)


def _because(index: Index, graph: Waiting, node: int, need: int) -> str:
    """One sentence of the proof: what cannot proceed, and what it waits for."""
    table = index.table
    if node >= table.num_entries:
        return _queue_because(index, graph, node, need)
    action, rank = table.action_at(node), int(index.ranks[node])
    ends = action.kind in SENDS or action.kind in WAITED_FOR
    subject = f"rank {rank} cannot {'finish' if ends else 'start'} {action}"
    if need >= table.num_entries:
        return f"{subject} because {_not_due(index, _awaited(index, graph, node, need))}"
    other, owner = table.action_at(need), int(index.ranks[need])
    if owner == rank:
        return f"{subject} because its own {other} comes later"
    done = "posted" if other.kind in RECEIVES else "sent" if other.kind in SENDS else "run"
    return f"{subject} because rank {owner} has not {done} {other}"


def _queue_because(index: Index, graph: Waiting, node: int, need: int) -> str:
    assert graph.queues is not None
    assert graph.ends is not None
    following, ahead = graph.queues.at(node)
    row = int(graph.ends[following])
    if need < index.table.num_entries:
        return f"rank {index.ranks[row]} has not reached {index.table.action_at(row)}"
    assert ahead is not None
    before = int(graph.ends[ahead])
    mate = int(mates(index)[before])
    first, then = index.table.action_at(before), index.table.action_at(row)
    return f"rank {index.ranks[row]} serves {first} before {then}, and {_not_due(index, mate)}"


def _awaited(index: Index, graph: Waiting, node: int, need: int) -> int:
    """The end (its row) that a row waits for: its own transfer's, or that of the transfer that brings its data."""
    assert graph.queues is not None
    assert graph.ends is not None
    needed, mate = needs(index), mates(index)
    sent = int(awaited_sends(index)[node])
    own = node if sent < 0 else sent
    ends = (own, int(mate[own]), int(needed.data[node]), int(needed.post[node]))
    due = dict(zip(graph.ends.tolist(), graph.queues.due.tolist(), strict=True))
    return next(row for row in ends if row >= 0 and due.get(row) == need)


def _not_due(index: Index, row: int) -> str:
    return f"{index.table.action_at(row)} is not due on rank {index.ranks[row]}"
