"""Who may be an agent: two messages inside of TLS, without sockets.

::

    agent       Hello(versions, identity, mac)
    controller  Welcome(mac)    or  Refusal(reason)

A mac is an HMAC-SHA256, keyed with the token, over the side's name, the fingerprint of the certificate that the
controller showed, and the agent's versions and identity. Someone in between can only show a certificate of their own,
so that neither side's proof is of use to the other. A peer that only connects to the controller gets no proof to try
tokens on, because the agent proves first.
"""

from __future__ import annotations

import hashlib
import hmac
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

__all__ = [
    "GREETING_LIMIT",
    "PROTOCOL",
    "Identity",
    "Refused",
    "Versions",
    "admitted",
    "hello",
    "own_versions",
    "printable",
    "refusal",
    "require_welcome",
]

T = TypeVar("T")

PROTOCOL = 4
GREETING_LIMIT = 4096  # bytes of one message
_CONTROLLERS_OWN = ("campaign", "certificate", "commands", "export", "gate", "report", "spec")


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
    """The agent's message."""

    versions: Versions
    identity: Identity
    mac: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The controller knows the token, too."""

    mac: bytes


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Why the controller goes no further; nothing proves that it comes from the controller."""

    reason: str


class Refused(Exception):  # noqa: N818 - it is raised as a statement about a peer
    """The peer is refused; the text says why and is safe to print."""


def hello(token: bytes, fingerprint: bytes, identity: Identity, *, versions: Versions | None = None) -> bytes:
    """The agent's message to the controller that showed a certificate with this fingerprint."""
    known = own_versions() if versions is None else versions
    mac = _mac(token, b"agent", fingerprint, known, identity)
    return msgspec.msgpack.encode(Hello(versions=known, identity=identity, mac=mac))


def admitted(
    body: bytes, *, token: bytes, fingerprint: bytes, versions: Versions | None = None
) -> tuple[Identity, bytes]:
    """The agent that sent `body`, and the controller's answer to it.

    Raises:
        Refused: it is not an agent of this controller; send it a `refusal`, and close the connection.
    """
    said, ours = _decoded(body, Hello), own_versions() if versions is None else versions
    if said.versions != ours:
        raise Refused(f"has another version: {_difference(said.versions, ours)}")
    if not hmac.compare_digest(_mac(token, b"agent", fingerprint, ours, said.identity), said.mac):
        raise Refused("does not know the token")
    mac = _mac(token, b"controller", fingerprint, ours, said.identity)
    return said.identity, msgspec.msgpack.encode(Welcome(mac=mac))


def refusal(reason: str) -> bytes:
    """The controller's message to a peer that is refused."""
    text = f"this controller refuses the connection: the peer {reason}"
    return msgspec.msgpack.encode(Refusal(reason=text[: GREETING_LIMIT // 4]))


def require_welcome(
    body: bytes, *, token: bytes, fingerprint: bytes, identity: Identity, versions: Versions | None = None
) -> None:
    """Check the answer to `hello`.

    Raises:
        Refused: the peer is no controller that knows the token, or it refuses this agent.
    """
    kind: Any = Welcome | Refusal
    said: Welcome | Refusal = _decoded(body, kind)
    if isinstance(said, Refusal):
        raise Refused(printable(said.reason))
    known = own_versions() if versions is None else versions
    if not hmac.compare_digest(_mac(token, b"controller", fingerprint, known, identity), said.mac):
        raise Refused("does not know the token")


def _mac(token: bytes, side: bytes, fingerprint: bytes, versions: Versions, identity: Identity) -> bytes:
    text = msgspec.msgpack.encode((b"pipeconform attach", side, fingerprint, versions, identity))
    return hmac.new(token, text, hashlib.sha256).digest()


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
