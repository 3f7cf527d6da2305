"""The controller's end of the socket to one rank: never blocks, whatever the sizes.

The rank runs the judged code, which can write to the socket, too: a frame that none of our ranks sends ends the
connection, and `Channel.wrong` says why.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipeconform.ranks.wire import HEADER, Kind

__all__ = ["Channel", "Frame"]

_GULP = 1 << 16
_TURN = 8 << 20  # bytes read in one turn, so that no rank keeps the others waiting
_MAX_PARTS = 64  # buffers given to the kernel at once
_LONGEST = 1 << 30  # bytes of a frame's body
_KINDS = frozenset(map(int, Kind))


@dataclass(frozen=True)
class Frame:
    """One message from a rank; ``moment`` in seconds of ``time.monotonic()`` at the sender."""

    number: int
    moment: float
    kind: Kind
    body: bytes


class Channel:
    """Frames in and out of a non-blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._outgoing: deque[memoryview] = deque()
        self._head = bytearray()
        self._body: bytearray | None = None
        self._filled = 0
        self._about: tuple[int, float, int] = (0, 0.0, 0)
        self.frames: deque[Frame] = deque()
        self.ended = False
        self.wrong = ""
        """What arrived that is no frame; empty while all is well."""
        self.moved = 0  # bytes in either direction, as evidence of progress

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def sending(self) -> bool:
        """Whether bytes wait for the rank to read them."""
        return bool(self._outgoing)

    @property
    def receiving(self) -> bool:
        """Whether part of a frame has come: its sender has finished computing."""
        return self._body is not None or bool(self._head)

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue ``parts`` and send what fits now."""
        self._outgoing.extend(memoryview(part) for part in parts if part)
        self.push()

    def push(self) -> None:
        """Send as much as the kernel takes."""
        while self._outgoing and not self.ended:
            try:
                sent = self._socket.sendmsg([*self._outgoing][:_MAX_PARTS])
            except BlockingIOError:
                return
            except OSError:  # the rank is gone; its exit code explains more
                self._outgoing.clear()
                return
            self.moved += sent
            while sent:
                first = self._outgoing.popleft()
                if sent < len(first):
                    self._outgoing.appendleft(first[sent:])
                sent -= min(sent, len(first))

    def pull(self, *, everything: bool = False) -> None:
        """Read what has arrived, up to a fair share unless ``everything``."""
        budget = _TURN
        while not self.ended and (everything or budget > 0):
            try:
                got = self._read()
            except BlockingIOError:
                return
            except OSError:
                got = 0
            if not got:
                self.ended = True
            budget -= got
            self.moved += got

    def _read(self) -> int:
        if self._body is not None:
            with memoryview(self._body) as view:
                got = self._socket.recv_into(view[self._filled :])
            self._filled += got
            self._finish_body()
            return got
        data = self._socket.recv(_GULP)
        self._head += data
        while self._body is None and len(self._head) >= HEADER.size:
            number, moment, kind, length = HEADER.unpack_from(self._head)
            if kind not in _KINDS or length > _LONGEST:
                return self._refuse(kind, length)
            self._about = (number, moment, kind)
            self._body = bytearray(length)
            present = self._head[HEADER.size : HEADER.size + length]
            self._body[: len(present)] = present
            self._filled = len(present)
            del self._head[: HEADER.size + len(present)]
            self._finish_body()
        return len(data)

    def _refuse(self, kind: int, length: int) -> int:
        self.wrong = (
            f"a frame of kind {kind}, which does not exist"
            if kind not in _KINDS
            else f"a frame of {length} bytes; at most {_LONGEST} are read"
        )
        return 0  # as at an end of file: the frames after this one cannot be found

    def _finish_body(self) -> None:
        if self._body is not None and self._filled == len(self._body):
            number, moment, kind = self._about
            self.frames.append(Frame(number=number, moment=moment, kind=Kind(kind), body=bytes(self._body)))
            self._body = None

    def close(self) -> None:
        """Close the socket; the rank reads an end of file."""
        self._outgoing.clear()
        self.ended = True
        self._socket.close()
