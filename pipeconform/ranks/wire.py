"""The bytes between controller, fork server and ranks: one frame format, few messages.

A frame is a fixed header (number, moment, kind, length) and a body. Between controller and rank ``number``
is the task counter and the body is a task or an answer; between controller and fork server it is unused
and the body is one of the messages below, in MessagePack. ``moment`` is ``time.monotonic()`` of the
sender, in seconds: all processes of a machine share that clock, so moments can be compared.

Nothing that a rank sends is ever unpickled: judged code runs in rank processes and can write to their
sockets.
"""

from __future__ import annotations

import struct
import time
from enum import IntEnum

import msgspec

__all__ = [
    "HEADER",
    "Address",
    "Command",
    "Exited",
    "Fork",
    "ForkFailed",
    "Forked",
    "Hello",
    "Kill",
    "Kind",
    "RankSpec",
    "Report",
    "Started",
    "command_decoder",
    "encode",
    "frame",
    "report_decoder",
]

HEADER = struct.Struct("<QdBQ")


class Kind(IntEnum):
    """The kind of a frame's body."""

    CONTROL = 0
    NAME = 1  # "module:function" of the task whose payload follows
    TASK = 2  # the payload
    READY = 3  # the rank is set up; the environment it sees
    UNFIT = 4  # the rank could not be set up; the traceback
    BYTES = 5  # the task's return value: bytes, which the caller decodes by a schema
    RAISED = 7  # the exception, as a verdict
    STORE = 8  # where the ranks of a group meet, if not in a file: from rank 0, then to the others


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message to a fork server: modules to import, folder to remove at the end."""

    preload: tuple[str, ...]
    folder: str


class Address(msgspec.Struct, frozen=True):
    """The address of a store that listens."""

    host: str
    port: int


class RankSpec(msgspec.Struct, frozen=True):
    """What a rank process gets when it is forked; ranks meet in the file `store`, or at the address `listen`."""

    rank: int
    world_size: int
    device: str
    backend: str | None
    store: str
    output: str
    stacks: str
    standing: str
    variables: tuple[str, ...]
    group_timeout: float
    listen: str = ""


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Fork one child per spec; the message carries one file descriptor per child."""

    group: int
    specs: tuple[RankSpec, ...]


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to the living ranks of a group; SIGKILL reaches their own children too."""

    group: int
    ranks: tuple[int, ...]
    signal: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """The server has preloaded everything."""

    pid: int


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The children of a group exist."""

    group: int
    pids: tuple[int, ...]


class ForkFailed(msgspec.Struct, frozen=True, tag=True):
    """A group could not be forked; children that were forked are gone."""

    group: int
    reason: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A child ended; ``code`` as in ``subprocess``: negative for a signal; ``moment`` in seconds.

    ``lost`` says why the code is unknown: the host that it ran on is out of reach.
    """

    group: int
    rank: int
    code: int
    moment: float
    lost: str = ""


Command = Hello | Fork | Kill
Report = Started | Forked | ForkFailed | Exited

_encoder = msgspec.msgpack.Encoder()
command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def frame(number: int, *, kind: Kind, length: int) -> bytes:
    """Return the header of a frame sent now."""
    return HEADER.pack(number, time.monotonic(), kind, length)


def encode(message: Command | Report) -> bytes:
    """Return a whole control frame."""
    body = _encoder.encode(message)
    return frame(0, kind=Kind.CONTROL, length=len(body)) + body
