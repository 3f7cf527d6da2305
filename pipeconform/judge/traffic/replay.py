"""Replay of recorded communication under the delivery rules of another transport.

Gloo buffers messages and serves them in any order; NCCL does not. With NCCL, operations of one communicator are carried
out in the order in which each rank issued them; a send does not complete before its receive has begun; and what is
issued after a wait begins after what was waited for. Torch gives every pair of ranks of a group a communicator for
single sends and receives, and the group one for its collectives and for batches, whose operations all begin together.

This needs no NCCL: every rank's recorded program of issues and waits is run against the queues of its communicators
(`pipeconform.schedule.queues`), and either it runs to the end or ranks wait in a circle. Tags play no part: messages
between two ranks are taken in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeconform.judge.traffic.messages import Exchange, Operand
from pipeconform.ranks.operations import Moment
from pipeconform.schedule.circles import shortest_circle
from pipeconform.schedule.queues import Ends, Queues, queues

__all__ = ["Circle", "circle"]


@dataclass(frozen=True)
class Circle:
    """Which rank waits for which, in sentences; each says why the wait of the one before does not end."""

    operands: tuple[Operand, ...]
    """The operations that are waited for, or issued too late, one per rank of the circle."""
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class _End:
    """One side of an operation between two ranks."""

    own: Operand
    other: Operand


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """The ranks' programs, followed by those of the queues."""

    exchange: Exchange
    ends: Sequence[_End]
    nodes: Sequence[tuple[int, Moment]]
    """The rank of the world and the moment of each node of the ranks' programs."""
    queues: Queues
    offsets: list[int]
    one: list[int]
    two: list[int]


def circle(exchange: Exchange, *, ordered: bool = True) -> Circle | None:
    """The shortest circle of waits in which the recorded programs end; None if they run to the end.

    Unless `ordered`, every operation is served as soon as both sides have issued it. Operations without a partner are
    left out: they wait forever in any order.
    """
    graph = _graph(exchange, ordered=ordered)
    found = shortest_circle(graph.offsets, graph.one, graph.two)
    if not found:
        return None
    rows = [_because(graph, node, need) for node, need in found]
    return Circle(
        tuple(dict.fromkeys(operand for operand, _ in rows)), tuple(dict.fromkeys(text for _, text in rows))
    )


def _pairs(exchange: Exchange) -> Iterator[tuple[Operand, Operand]]:
    """Pairs of operands that wait for each other: the two ends of a message, any two members of a collective."""
    for message in exchange.messages:
        yield message.send, message.receive
    for one in exchange.collectives:
        if set(one.operands) == set(one.members):
            operands = list(one.operands.values())
            yield from ((a, b) for k, a in enumerate(operands) for b in operands[k + 1 :])


def _graph(exchange: Exchange, *, ordered: bool) -> _Graph:
    partners: dict[Operand, list[Operand]] = defaultdict(list)
    for a, b in _pairs(exchange):
        partners[a].append(b)
        partners[b].append(a)

    # Step 1: a rank's nodes are its moments; a wait for many has several, because a node needs at most two others.
    nodes: list[tuple[int, Moment]] = []
    waits: list[tuple[int, _End]] = []
    issued: dict[Operand, int] = {}
    offsets = [0]
    for rank, traffic in sorted(exchange.traffic.items()):
        for moment in traffic.moments:
            operand = rank, moment.operation
            if moment.kind == "issue":
                issued[operand] = len(nodes)
                nodes.append((rank, moment))
                continue
            for partner in partners[operand]:
                waits.append((len(nodes), _End(operand, partner)))
                nodes.append((rank, moment))
        offsets.append(len(nodes))

    # Step 2: the queues; what was issued as one is issued with its last operation.
    ends = [_End(own, other) for own, others in partners.items() for other in others]
    ends.sort(key=lambda end: issued[end.own])
    number = {end: k for k, end in enumerate(ends)}
    last = _last_issues(exchange, issued)
    names = {
        key: k
        for k, key in enumerate(dict.fromkeys(_queue(exchange, end, last, ordered=ordered) for end in ends))
    }
    found = queues(
        Ends(
            queue=np.array([names[_queue(exchange, end, last, ordered=ordered)] for end in ends], np.int64),
            batch=np.array([last[end.own] for end in ends], np.int64),
            issue=np.array([last[end.own] for end in ends], np.int64),
            mate=np.array([number[_End(end.other, end.own)] for end in ends], np.int64),
        ),
        first_node=len(nodes),
    )

    # Step 3: a wait needs both ends.
    one, two = [-1] * len(nodes), [-1] * len(nodes)
    for node, end in waits:
        one[node] = int(found.due[number[end]])
        two[node] = int(found.due[number[_End(end.other, end.own)]])
    return _Graph(
        exchange=exchange,
        ends=ends,
        nodes=nodes,
        queues=found,
        offsets=offsets + found.stops.tolist(),
        one=one + found.one.tolist(),
        two=two + found.two.tolist(),
    )


def _last_issues(exchange: Exchange, issued: dict[Operand, int]) -> dict[Operand, int]:
    """For every operand, the node of the last issue of its batch, or its own node."""
    last: dict[tuple[int, int], int] = {}
    for operand, node in issued.items():
        key = operand[0], exchange.operation(operand).batch
        last[key] = max(last.get(key, node), node)
    return {
        operand: node if (batch := exchange.operation(operand).batch) < 0 else last[operand[0], batch]
        for operand, node in issued.items()
    }


def _queue(exchange: Exchange, end: _End, last: dict[Operand, int], *, ordered: bool) -> tuple[object, ...]:
    """The name of an end's queue: its communicator on its rank; if unordered, what was issued together with it."""
    rank, operation = end.own[0], exchange.operation(end.own)
    if not ordered:
        return rank, last[end.own]
    single = operation.kind != "collective" and operation.batch < 0
    return (rank, operation.group, end.other[0]) if single else (rank, operation.group)


def _because(graph: _Graph, node: int, need: int) -> tuple[Operand, str]:
    """One step of the proof: an operand, and a sentence about it."""
    if node < len(graph.nodes):
        rank, moment = graph.nodes[node]
        operand = rank, moment.operation
        return operand, f"rank {rank} waits for its {_named(graph, operand)}"
    following, ahead = graph.queues.at(node)
    own = graph.ends[following].own
    if need < len(graph.nodes):
        return own, f"rank {own[0]} has not reached its {_named(graph, own)}"
    assert ahead is not None
    end = graph.ends[ahead]
    return own, (
        f"rank {own[0]} serves its {_named(graph, own)} only after its {_named(graph, end.own)}, "
        f"which needs rank {end.other[0]}'s {_named(graph, end.other)}"
    )


def _named(graph: _Graph, operand: Operand) -> str:
    batch = graph.exchange.operation(operand).batch
    return f"{graph.exchange.named(operand)}{' (in a batch)' if batch >= 0 else ''}"
