"""A connection between controller and agent: frames inside of TLS, over a non-blocking socket.

A frame is a 64-bit length and a body. TLS keeps others from reading them, and from changing, leaving out, repeating or
inserting any.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
import sys
from collections import deque

__all__ = ["MESSAGE_LIMIT", "Link", "descriptor_limit", "keep_alive", "raise_descriptor_limit"]

MESSAGE_LIMIT = 256 << 20  # bytes of one frame's body
_LENGTH = struct.Struct(">Q")
_SMALL = 1 << 14  # bytes of a body that shares a record of TLS with its length
_GULP = 1 << 18
_DESCRIPTORS = (
    1 << 16
)  # files that a process may want to open: a connection is one, and 1,024 is the usual limit
_TURN = 8 << 20  # bytes read in one turn, so that no peer keeps the others waiting
_LATER = (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError)


class Link:
    """Frames in and out. Before `admit`, only one comes in, with a body of at most `greeting` bytes."""

    def __init__(self, connection: ssl.SSLSocket, *, greeting: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._limit, self._admitted = greeting, False
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self.messages: deque[bytes] = deque()
        self.ended = ""
        """Why the link has ended; empty while it is open."""
        self.heard = 0
        """Bytes received; grows while the peer is alive."""
        self.queued = 0
        """Bytes that wait for the peer to read them."""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def partial(self) -> int:
        """The number of bytes received of a frame that is not complete."""
        return len(self._incoming)

    @property
    def _full(self) -> bool:
        return bool(self.messages) and not self._admitted

    def admit(self) -> None:
        """Take frames of any number and size: the peer has proved who it is."""
        self._limit, self._admitted = MESSAGE_LIMIT, True
        self._split()
        self.pull()  # what TLS has read already would wake no wait

    def send(self, body: bytes) -> None:
        """Queue a frame and send what fits now.

        Raises:
            ValueError: the body is larger than the peer accepts.
        """
        if len(body) > MESSAGE_LIMIT:
            raise ValueError(f"a message of {len(body)} bytes; the limit is {MESSAGE_LIMIT}")
        if self.ended:
            return
        length = _LENGTH.pack(len(body))
        parts = (length + body,) if len(body) <= _SMALL else (length, body)
        self._outgoing.extend(map(memoryview, parts))
        self.queued += len(length) + len(body)
        self.push()

    def push(self) -> None:
        """Send as much as the kernel takes."""
        while self._outgoing and not self.ended:
            try:
                sent = self._socket.send(self._outgoing[0])
            except _LATER:
                return
            except OSError as error:
                self._hear_out()
                self.end(f"broke: {error.strerror or error}")
                return
            self.queued -= sent
            self._outgoing[0] = self._outgoing[0][sent:]
            if not self._outgoing[0]:
                self._outgoing.popleft()

    def _hear_out(self) -> None:
        """Read what a peer said before it closed: whoever sends at that moment would else miss its goodbye."""
        self._outgoing.clear()
        self.queued = 0
        self.pull()

    def pull(self) -> None:
        """Read what has arrived, up to a fair share; what TLS has decrypted already would wake no later wait."""
        budget = _TURN
        while not self.ended and not self._full and (budget > 0 or self._socket.pending()):
            try:
                data = self._socket.recv(_GULP)
            except _LATER:
                return
            except OSError as error:
                self.end(f"broke: {error.strerror or error}")
                return
            if not data:
                self.end("was closed")
                return
            budget -= len(data)
            self.heard += len(data)
            self._incoming += data
            self._split()

    def _split(self) -> None:
        while not self.ended and not self._full and len(self._incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if length > self._limit:
                self.end(f"announced a message of {length} bytes; the limit is {self._limit}")
                return
            end = _LENGTH.size + length
            if len(self._incoming) < end:
                return
            self.messages.append(bytes(self._incoming[_LENGTH.size : end]))
            del self._incoming[:end]

    def end(self, why: str) -> None:
        """Send and read no more; the first reason stays. The descriptor is kept until :meth:`close`."""
        if not self.ended:
            self.ended = why
            self._outgoing.clear()
            self._incoming.clear()
            self.queued = 0
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS has no say in it

    def close(self) -> None:
        """End, and close the descriptor."""
        self.end("was closed here")
        self._socket.close()


def keep_alive(connection: socket.socket, *, seconds: int) -> None:
    """Have the kernel end a connection if the peer's machine sends nothing for about `seconds`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        step = max(1, seconds // 4)
        for option, value in (
            (socket.TCP_KEEPIDLE, step),
            (socket.TCP_KEEPINTVL, step),
            (socket.TCP_KEEPCNT, 3),
            (socket.TCP_USER_TIMEOUT, 1000 * seconds),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def descriptor_limit() -> int:
    """The number of files that this process may have open at a time."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit(wanted: int = _DESCRIPTORS) -> None:
    """Raise the limit to `wanted`, or as far as the system lets an ordinary process; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # a system may have further limits
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
