"""The messages between controller and agent after both have proved that they know the token.

MessagePack with a schema on both sides: anything else ends the connection. What ranks are sent and say crosses in the
frames of `pipeconform.ranks.wire`, which agents pass on unread. Times are seconds since the task was handed to its
rank, on the agent's own clock: clocks of different hosts are never compared.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Ask",
    "Bye",
    "Fork",
    "Gone",
    "Hand",
    "Kill",
    "Order",
    "Prepare",
    "Pulse",
    "Said",
    "Seen",
    "Told",
    "Word",
    "encode",
    "orders",
    "words",
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
    pulse: float
    """Seconds between two pulses while it runs a task."""


class Hand(msgspec.Struct, frozen=True, tag=True):
    """Send these frames to the rank; `task` is the number of the task in them, 0 if there is none."""

    member: int
    task: int
    frames: bytes


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Ask the rank what it is doing, or for its stacks."""

    member: int
    ticket: int
    stacks: bool


class Kill(msgspec.Struct, frozen=True, tag=True):
    """End the rank."""

    member: int


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The run is over."""


class Said(msgspec.Struct, frozen=True, tag=True):
    """A frame that the rank sent, and its process id."""

    member: int
    pid: int
    number: int
    kind: int
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


class Told(msgspec.Struct, frozen=True, tag=True):
    """An answer to `Ask`: a `pipeconform.ranks.standing.Standing` in JSON, or stacks and the end of the output.

    The body is empty where the rank did not answer.
    """

    member: int
    ticket: int
    body: bytes
    output: str = ""


Order = Prepare | Fork | Hand | Ask | Kill | Bye
Word = Said | Gone | Pulse | Told

encode = msgspec.msgpack.Encoder().encode
"""The body of a frame between controller and agent."""
orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
"""Reads what the controller sends; MsgspecError if it is none of its messages."""
words: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)
"""Reads what an agent sends; MsgspecError if it is none of its messages."""
