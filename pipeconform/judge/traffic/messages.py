"""The recorded communication of all ranks, matched: which send belongs to which receive.

A send and a receive belong together if they use the same group, the same two ranks and the same tag, and each is the
k-th of its kind among those. A receive from any rank takes the first send that no other receive takes. The k-th
collective on a group is the same one on all its members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeconform.judge.traffic.cargo import Carried, shared
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.operations import Operation

__all__ = ["Collective", "Exchange", "Message", "Operand", "exchange"]

Operand = tuple[int, int]
"""Rank of the world and number of its operation."""
_Channel = tuple[str, int, int, int]
"""Group, sender and receiver as ranks of the world, tag."""


@dataclass(frozen=True)
class Message:
    """A send and the receive that takes it."""

    send: Operand
    receive: Operand


@dataclass(frozen=True)
class Collective:
    """The k-th collective operation of a group, with the operand of each member that reached it."""

    group: str
    operands: Mapping[int, Operand]
    members: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """All communication of one execution."""

    traffic: Mapping[int, Traffic]
    """By rank of the world."""
    messages: Sequence[Message]
    unreceived: Sequence[Operand]
    unsent: Sequence[Operand]
    collectives: Sequence[Collective]
    carried: Mapping[Operand, Carried] = field(default_factory=dict)
    """What operations carry, as far as they can be identified."""

    def operation(self, operand: Operand) -> Operation:
        """What a rank issued."""
        rank, number = operand
        return self.traffic[rank].operations[number]

    def named(self, operand: Operand) -> str:
        """``send of float64[2, 3] to rank 1, operation 4 (output of stage 0, microbatch 2)``."""
        cargo = self.carried.get(operand)
        return f"{self.operation(operand)}{'' if cargo is None else f' ({cargo})'}"


def exchange(traffic: Mapping[int, Traffic], carried: Mapping[Operand, Carried] | None = None) -> Exchange:
    """Match the operations of all ranks; `carried` has what is known of their contents."""
    sends: dict[_Channel, list[Operand]] = defaultdict(list)
    receives: list[tuple[Operand, Operation]] = []
    joined: dict[str, dict[int, list[Operand]]] = defaultdict(lambda: defaultdict(list))
    members: dict[str, tuple[int, ...]] = {}
    for rank, recorded in traffic.items():
        members |= recorded.groups
        for one in recorded.operations:
            operand = rank, one.number
            if one.kind == "send":
                sends[one.group, rank, one.process, one.tag].append(operand)
            elif one.kind == "receive":
                receives.append((operand, one))
            else:
                joined[one.group][rank].append(operand)
    messages, unsent = _taken(sends, receives)
    return Exchange(
        traffic=traffic,
        carried=shared(carried or {}, ((one.send, one.receive) for one in messages)),
        messages=messages,
        unreceived=tuple(operand for waiting in sends.values() for operand in waiting),
        unsent=unsent,
        collectives=tuple(
            Collective(group, {r: own[k] for r, own in by_rank.items() if k < len(own)}, members[group])
            for group, by_rank in joined.items()
            for k in range(max(map(len, by_rank.values())))
        ),
    )


def _taken(
    sends: dict[_Channel, list[Operand]], receives: list[tuple[Operand, Operation]]
) -> tuple[tuple[Message, ...], tuple[Operand, ...]]:
    """The messages, and the receives without a send; what is left in `sends` was not received."""
    messages, unsent = [], []
    for operand, one in sorted(receives, key=lambda row: row[1].process < 0):  # those from any rank come last
        mine = [
            channel
            for channel in ((one.group, one.process, operand[0], one.tag),)
            if one.process >= 0 and sends.get(channel)
        ]
        if one.process < 0:
            mine = [
                channel
                for channel, waiting in sends.items()
                if waiting and (channel[0], *channel[2:]) == (one.group, operand[0], one.tag)
            ]
        if mine:
            messages.append(Message(sends[mine[0]].pop(0), operand))
        else:
            unsent.append(operand)
    return tuple(messages), tuple(unsent)
