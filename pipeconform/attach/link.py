"""A connection between controller and agent after the handshake: sealed frames over a non-blocking socket.

A frame is a 64-bit length, a seal and a body. The seal is keyed BLAKE2b over the frame's number in its
direction, the length and the body, so that nothing can be changed, left out, repeated or inserted.
Bodies are not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import resource
import socket
import struct
import sys
from collections import deque

__all__ = ["MESSAGE_LIMIT", "Link", "descriptor_limit", "keep_alive", "raise_descriptor_limit"]

MESSAGE_LIMIT = 256 << 20  # bytes of one frame's body
_LENGTH = struct.Struct(">Q")
_NUMBER = struct.Struct(">Q")
_SEAL = 16
_HEAD = _LENGTH.size + _SEAL
_GULP = 1 << 18
_DESCRIPTORS = (
    1 << 16
)  # files that a process may want to open: a connection is one, and 1,024 is the usual limit
_TURN = 8 << 20  # bytes read in one turn, so that no peer keeps the others waiting


class Link:
    """Frames in and out; `sealing` is the key for sent frames, `opening` the one for received frames."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        sealing: bytes,
        opening: bytes,
        received: bytes = b"",
        limit: int = MESSAGE_LIMIT,
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._sealing, self._opening, self._limit = sealing, opening, limit
        self._numbers = [0, 0]  # sent, received
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray(received)
        self.messages: deque[bytes] = deque()
        self.ended = ""
        """Why the link has ended; empty while it is open."""
        self.heard = 0
        """Bytes received; grows while the peer is alive."""
        self.queued = 0
        """Bytes that wait for the peer to read them."""
        self._split()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def partial(self) -> int:
        """The number of bytes received of a frame that is not complete."""
        return len(self._incoming)

    def send(self, body: bytes) -> None:
        """Queue a frame and send what fits now.

        Raises:
            ValueError: the body is larger than the peer accepts.
        """
        if len(body) > self._limit:
            raise ValueError(f"a message of {len(body)} bytes; the limit is {self._limit}")
        if self.ended:
            return
        length = _LENGTH.pack(len(body))
        seal = _seal(self._sealing, self._numbers[0], length, body)
        self._numbers[0] += 1
        self._outgoing.append(memoryview(length + seal))
        self._outgoing.append(memoryview(body))
        self.queued += _HEAD + len(body)
        self.push()

    def push(self) -> None:
        """Send as much as the kernel takes."""
        while self._outgoing and not self.ended:
            try:
                sent = self._socket.sendmsg([*self._outgoing][:16])
            except BlockingIOError:
                return
            except OSError as error:
                self.end(f"broke: {error.strerror or error}")
                return
            self.queued -= sent
            while self._outgoing and sent >= len(self._outgoing[0]):
                sent -= len(self._outgoing.popleft())
            if sent:
                self._outgoing[0] = self._outgoing[0][sent:]

    def pull(self) -> None:
        """Read what has arrived, up to a fair share."""
        budget = _TURN
        while not self.ended and budget > 0:
            try:
                data = self._socket.recv(_GULP)
            except BlockingIOError:
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
            if len(data) < _GULP:
                return  # everything is read; later bytes wake the next wait

    def _split(self) -> None:
        while not self.ended and len(self._incoming) >= _HEAD:
            (length,) = _LENGTH.unpack_from(self._incoming)
            if length > self._limit:
                self.end(f"announced a message of {length} bytes; the limit is {self._limit}")
                return
            end = _HEAD + length
            if len(self._incoming) < end:
                return
            seal, body = bytes(self._incoming[_LENGTH.size : _HEAD]), bytes(self._incoming[_HEAD:end])
            wanted = _seal(self._opening, self._numbers[1], _LENGTH.pack(length), body)
            if not hmac.compare_digest(seal, wanted):
                self.end("carried a message with a wrong seal")
                return
            self._numbers[1] += 1
            del self._incoming[:end]
            self.messages.append(body)

    def end(self, why: str) -> None:
        """Send and read no more; the first reason stays. The descriptor is kept until :meth:`close`."""
        if not self.ended:
            self.ended = why
            self._outgoing.clear()
            self._incoming.clear()
            self.queued = 0
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End, and close the descriptor."""
        self.end("was closed here")
        self._socket.close()


def _seal(key: bytes, number: int, length: bytes, body: bytes) -> bytes:
    mac = hashlib.blake2b(_NUMBER.pack(number) + length, key=key, digest_size=_SEAL)
    mac.update(body)
    return mac.digest()


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
