"""The messages between controller and agent after both have proved that they know the token.

MessagePack with a schema on both sides: anything else ends the connection. Payloads, answers and the
tensors in them are bytes that agents pass on unread. Times are seconds since the task was handed
to its rank, on the agent's own clock: clocks of different hosts are never compared.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "Answer",
    "AskStacks",
    "AskStanding",
    "Bye",
    "Fork",
    "Gone",
    "Kill",
    "Order",
    "Prepare",
    "Pulse",
    "Ready",
    "Stacks",
    "Standing",
    "StoreAt",
    "Task",
    "Unfit",
    "Word",
    "encode",
    "read_order",
    "read_word",
]


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Start a fork server for an environment variant with this number; the modules are imported first."""

    environment: int
    name: str
    variables: dict[str, str | None]
    preload: tuple[str, ...]


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Fork a rank; `member` is its number on this connection."""

    member: int
    environment: int
    rank: int
    world_size: int
    device_type: str
    """The device type; the agent knows the index of its own device."""
    backend: str | None
    group_timeout: float
    pulse: float
    """Seconds between two pulses while it runs a task."""


class StoreAt(msgspec.Struct, frozen=True, tag=True):
    """Where the ranks of a group meet: rank 0 reports it, the controller passes it on to the others."""

    member: int
    host: str
    port: int


class Task(msgspec.Struct, frozen=True, tag=True):
    """Run ``"module:function"`` with a payload."""

    member: int
    number: int
    name: str
    payload: bytes


class AskStanding(msgspec.Struct, frozen=True, tag=True):
    """Ask what the rank is doing."""

    member: int
    ticket: int


class AskStacks(msgspec.Struct, frozen=True, tag=True):
    """Ask for the rank's stacks and its output."""

    member: int
    ticket: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End the rank."""

    member: int


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The run is over."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The rank is set up and sees these variables."""

    member: int
    pid: int
    seen: dict[str, str | None]


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The rank could not be set up."""

    member: int
    reason: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The task's return value, or what it raised as a verdict in MessagePack."""

    member: int
    number: int
    kind: Literal["returned", "raised"]
    body: bytes
    after: float


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The rank's process ended; `code` as in ``subprocess``; `output` is the end of what it printed.

    `lost` says why the agent cannot know how it ended: its fork server is gone.
    """

    member: int
    code: int
    after: float
    output: str
    lost: str = ""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """For one rank that runs a task: how often it was seen to progress, and whether a signal holds it now."""

    member: int
    progressed: int
    stopped: bool


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """Sent while ranks run tasks, as often as the controller can read, up to ten times a second."""

    ranks: tuple[Seen, ...]


class Standing(msgspec.Struct, frozen=True, tag=True):
    """A `pipeconform.ranks.standing.Standing` in JSON; empty where the rank did not answer."""

    member: int
    ticket: int
    body: bytes


class Stacks(msgspec.Struct, frozen=True, tag=True):
    """Stacks and output; each may be empty."""

    member: int
    ticket: int
    stacks: str
    output: str


Order = Prepare | Fork | StoreAt | Task | AskStanding | AskStacks | Kill | Bye
Word = StoreAt | Ready | Unfit | Answer | Gone | Pulse | Standing | Stacks

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_words: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


def encode(message: Order | Word) -> bytes:
    """The body of a frame."""
    return _encoder.encode(message)


def read_order(body: bytes) -> Order:
    """Decode an order of the controller.

    Raises:
        msgspec.MsgspecError: it is none of the messages.
    """
    return _orders.decode(body)


def read_word(body: bytes) -> Word:
    """Decode a report of an agent.

    Raises:
        msgspec.MsgspecError: it is none of the messages.
    """
    return _words.decode(body)
