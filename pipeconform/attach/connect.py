"""The agent's side of connecting: find the controller, prove the token to each other, and return a link."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Callable

from pipeconform.attach.certificate import agents_context, fingerprint_of
from pipeconform.attach.greeting import (
    GREETING_LIMIT,
    Identity,
    Refused,
    Versions,
    hello,
    printable,
    require_welcome,
)
from pipeconform.attach.launch import identity_of
from pipeconform.attach.link import Link, keep_alive
from pipeconform.errors import PipeconformError, UsageError

__all__ = ["SILENCE", "ControllerGone", "NoController", "connected"]

SILENCE = 16  # seconds without a message after which a host counts as gone, on either side
_GREETING = 120.0  # seconds; a controller that judges a case is slow to answer
_RETRY = 0.5  # seconds between two attempts to connect

Say = Callable[[str], None]


class ControllerGone(PipeconformError):  # noqa: N818 - it is raised as a statement
    """The connection to the controller ended without a goodbye."""

    exit_code = 1


class NoController(ControllerGone):
    """No controller listens at the address."""


def connected(
    host: str,
    port: int,
    *,
    token: bytes,
    address: str | None,
    wait: float,
    say: Say,
    versions: Versions | None = None,
) -> tuple[Link, Identity]:
    """A link to the controller, which may start up to `wait` seconds from now.

    Raises:
        UsageError: the controller refuses this agent, or does not know the token.
        NoController: there is none.
    """
    deadline = time.monotonic() + wait
    told = ""
    while True:
        try:
            return _attempt(host, port, token=token, address=address, versions=versions)
        except Refused as error:
            raise UsageError(f"no controller for this agent at {host}:{port}: {error}") from error
        except OSError as error:
            why = str(error.strerror or error)
        if time.monotonic() > deadline:
            raise NoController(f"no controller at {host}:{port} within {wait:g} s: {why}")
        if why != told:
            told = why
            say(f"waits for the controller at {host}:{port}: {why}")
        time.sleep(_RETRY)


def _attempt(
    host: str, port: int, *, token: bytes, address: str | None, versions: Versions | None
) -> tuple[Link, Identity]:
    connection = socket.create_connection((host, port), timeout=_GREETING)
    try:
        keep_alive(connection, seconds=SILENCE)
        own = connection.getsockname()[0] if address is None else address
        secured = agents_context().wrap_socket(connection)
    except ssl.SSLEOFError as error:
        connection.close()
        raise ConnectionAbortedError("it closed the connection during the handshake") from error
    except ssl.SSLError as error:
        connection.close()
        raise Refused(f"does not speak TLS: {printable(str(error.reason or error))}") from error
    except BaseException:
        connection.close()
        raise
    link = Link(secured, greeting=GREETING_LIMIT)
    try:
        fingerprint = fingerprint_of(secured.getpeercert(binary_form=True) or b"")
        identity = identity_of(os.environ, address=own)
        link.send(hello(token, fingerprint, identity, versions=versions))
        answer = _answer(link)
        require_welcome(answer, token=token, fingerprint=fingerprint, identity=identity, versions=versions)
    except BaseException:
        link.close()
        raise
    link.admit()
    return link, identity


def _answer(link: Link) -> bytes:
    """The controller's first message.

    Raises:
        OSError: none came.
    """
    deadline = time.monotonic() + _GREETING
    while not link.messages:
        if link.ended:
            raise ConnectionAbortedError(f"the connection {link.ended} during the greeting")
        if not select.select([link], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError("it did not answer the greeting")
        link.pull()
    return link.messages.popleft()
