"""The handshake, without sockets: bytes in, bytes out, and at the end the keys of the session.

::

    agent       magic, Hello(versions, nonce)
    controller  magic, Challenge(versions, nonce)           or  magic, Refusal(reason)
    agent       Proof(mac, identity)
    controller  Welcome(mac)                                or  Refusal(reason)

Each message is a 16-bit length and MessagePack. A proof is an HMAC-SHA256, keyed with the token, over the side's
name and the transcript: every byte that was sent before in either direction, and the identity. A peer that only
connects to the controller gets no proof to try tokens on, because the agent proves first.
"""

from __future__ import annotations

import hashlib
import hmac
import platform
import secrets
import struct
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

__all__ = ["PROTOCOL", "Greeter", "Guest", "Identity", "Keys", "Refused", "Versions", "own_versions"]

T = TypeVar("T")

PROTOCOL = 2
MAGIC = b"pcattach"
_LENGTH = struct.Struct(">H")
_MOST = 4096  # bytes of one message
_NONCE = 32
_CONTROLLERS_OWN = ("campaign", "certificate", "commands", "export", "gate", "report", "spec")
_BESIDE = ("reference_impl", "suites")  # inside the package when it is installed, beside it in a clone


class Versions(msgspec.Struct, frozen=True):
    """What must be equal on both sides: results of different torch releases are not comparable bit for bit."""

    protocol: int
    pipeconform: str
    source: str
    """A digest of the files that ranks execute: between two releases the version says little."""
    torch: str
    python: str


@cache
def own_versions() -> Versions:
    """The versions on this side."""
    return Versions(
        protocol=PROTOCOL,
        pipeconform=metadata.version("pipeconform"),
        source=_digest(Path(__file__).parents[1]),
        torch=metadata.version("torch"),
        python=".".join(platform.python_version_tuple()[:2]),
    )


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    paths = (
        path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in _CONTROLLERS_OWN
    )
    for path in sorted(paths):
        text = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()}\0{len(text)}\0".encode() + text)
    return found.hexdigest()[:16]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's identity; `rank`, `local_rank` and `node` are its launcher's numbers."""

    host: str
    pid: int
    address: str
    """The address at which other ranks reach it."""
    rank: int = 0
    local_rank: int = 0
    node: int = 0

    def __str__(self) -> str:
        return f"agent {self.rank} on host {printable(self.host)} ({printable(self.address)}, pid {self.pid})"


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The agent's first message."""

    versions: Versions
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """The controller's answer to an agent of the same versions."""

    versions: Versions
    nonce: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    """The agent knows the token; `identity` is an `Identity` in MessagePack and covered by the proof."""

    mac: bytes
    identity: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The controller knows the token, too."""

    mac: bytes


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Why the controller goes no further; nothing proves that it comes from the controller."""

    reason: str


@dataclass(frozen=True)
class Keys:
    """One key per direction."""

    to_controller: bytes
    to_agent: bytes


class Refused(Exception):  # noqa: N818 - it is raised as a statement about a peer
    """The peer is refused; the text says why and is safe to print."""


class _Side:
    """What both sides of a handshake have in common."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._bytes = bytearray()
        self._transcript = hashlib.sha256()
        self._greeted = False
        self._raw = b""
        self.heard = 0
        """Bytes that came from the peer."""

    def _said(self, message: msgspec.Struct, *, first: bool = False) -> bytes:
        body = msgspec.msgpack.encode(message)
        data = (MAGIC if first else b"") + _LENGTH.pack(len(body)) + body
        self._transcript.update(data)
        return data

    def _take(self, data: bytes) -> bytes | None:
        """Add `data` to the bytes received; return a whole message, or None until there is one."""
        self.heard += len(data)
        self._bytes += data
        if not self._greeted:
            if not MAGIC.startswith(bytes(self._bytes[: len(MAGIC)])):
                raise Refused(f"does not speak the protocol: it began with {bytes(self._bytes[:8])!r}")
            if len(self._bytes) < len(MAGIC):
                return None
            self._greeted = True
            self._transcript.update(self._bytes[: len(MAGIC)])
            del self._bytes[: len(MAGIC)]
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > _MOST:
            raise Refused(f"announced a greeting of {length} bytes; the limit is {_MOST}")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        whole = bytes(self._bytes[:end])
        del self._bytes[:end]
        self._raw = whole
        return whole[_LENGTH.size :]

    def _mac(self, side: str, identity: bytes = b"") -> bytes:
        text = b"pipeconform attach\0" + side.encode() + b"\0" + self._transcript.digest() + identity
        return hmac.new(self._token, text, hashlib.sha256).digest()

    def _keys(self) -> Keys:
        return Keys(to_controller=self._mac("key to controller"), to_agent=self._mac("key to agent"))

    def rest(self) -> bytes:
        """The bytes after the handshake, which belong to the session."""
        return bytes(self._bytes)


class Greeter(_Side):
    """The controller's side of one connection; `identity` and `keys` are set when it is done."""

    def __init__(self, token: bytes, *, versions: Versions | None = None) -> None:
        super().__init__(token)
        self._versions = own_versions() if versions is None else versions
        self._challenged = False
        self.identity: Identity | None = None
        self.keys: Keys | None = None

    def feed(self, data: bytes) -> bytes:
        """Take what the peer sent; return what to send it.

        Raises:
            Refused: it is not an agent of this controller; send it `refusal`, and close the connection.
        """
        answer = b""
        while self.keys is None and (body := self._take(data)) is not None:
            data = b""
            answer += self._heard_proof(body) if self._challenged else self._heard_hello(body)
        return answer

    def _heard_hello(self, body: bytes) -> bytes:
        hello = _decoded(body, Hello)
        if hello.versions != self._versions:
            raise Refused(f"has another version: {_difference(hello.versions, self._versions)}")
        if len(hello.nonce) != _NONCE:
            raise Refused("sent a nonce of another length")
        self._transcript.update(self._raw)
        self._challenged = True
        challenge = Challenge(versions=self._versions, nonce=secrets.token_bytes(_NONCE))
        return self._said(challenge, first=True)

    def _heard_proof(self, body: bytes) -> bytes:
        proof = _decoded(body, Proof)
        if not hmac.compare_digest(self._mac("agent", proof.identity), proof.mac):
            raise Refused("does not know the token")
        self._transcript.update(self._raw)
        self.identity = _decoded(proof.identity, Identity)
        welcome = self._said(Welcome(mac=self._mac("controller")))
        self.keys = self._keys()
        return welcome

    def refusal(self, reason: str) -> bytes:
        """The message for a peer that is refused."""
        text = f"this controller refuses the connection: the peer {reason}"
        return self._said(Refusal(reason=text[: _MOST // 4]), first=not self._challenged)


class Guest(_Side):
    """The agent's side; `keys` are set when it is done."""

    def __init__(self, token: bytes, identity: Identity, *, versions: Versions | None = None) -> None:
        super().__init__(token)
        self._versions = own_versions() if versions is None else versions
        self._identity = msgspec.msgpack.encode(identity)
        self._proved = False
        self.keys: Keys | None = None

    def begin(self) -> bytes:
        """The first message to send."""
        hello = Hello(versions=self._versions, nonce=secrets.token_bytes(_NONCE))
        return self._said(hello, first=True)

    def feed(self, data: bytes) -> bytes:
        """Take what the peer sent; return what to send it.

        Raises:
            Refused: the peer is no controller that knows the token, or it refuses this agent.
        """
        answer = b""
        while self.keys is None and (body := self._take(data)) is not None:
            data = b""
            answer += self._heard(_read(body))
        return answer

    def _heard(self, message: Challenge | Welcome | Refusal) -> bytes:
        match message:
            case Refusal(reason=reason):
                raise Refused(printable(reason))
            case Challenge() if not self._proved:
                if message.versions != self._versions:
                    raise Refused(f"has another version: {_difference(message.versions, self._versions)}")
                self._transcript.update(self._raw)
                self._proved = True
                mac = self._mac("agent", self._identity)
                return self._said(Proof(mac=mac, identity=self._identity))
            case Welcome(mac=mac) if self._proved:
                if not hmac.compare_digest(self._mac("controller"), mac):
                    raise Refused("does not know the token")
                self._transcript.update(self._raw)
                self.keys = self._keys()
                return b""
        raise Refused("sent a message out of turn")


def _read(body: bytes) -> Challenge | Welcome | Refusal:
    kind: Any = Challenge | Welcome | Refusal
    found: Challenge | Welcome | Refusal = _decoded(body, kind)
    return found


def printable(text: str) -> str:
    """A peer's text without characters that could move a terminal's cursor."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _difference(theirs: Versions, ours: Versions) -> str:
    names = (name for name in Versions.__struct_fields__ if getattr(theirs, name) != getattr(ours, name))
    return ", ".join(
        f"{name} {printable(str(getattr(theirs, name)))} instead of {getattr(ours, name)}" for name in names
    )


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(f"sent a greeting that cannot be read: {printable(str(error))}") from error
