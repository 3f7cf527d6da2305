"""The agent's side of connecting: find the controller, do the handshake, and return a link."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from pipeconform.attach.greeting import Guest, Identity, Refused, Versions
from pipeconform.attach.launch import identity_of
from pipeconform.attach.link import Link, keep_alive
from pipeconform.errors import PipeconformError, UsageError

__all__ = ["SILENCE", "ControllerGone", "connected"]

SILENCE = 16  # seconds without a message after which a host counts as gone, on either side
_GREETING = 120.0  # seconds; a controller that judges a case is slow to answer
_RETRY = 0.5  # seconds between two attempts to connect

Say = Callable[[str], None]


class ControllerGone(PipeconformError):  # noqa: N818 - it is raised as a statement
    """The connection to the controller ended without a goodbye, or was never made."""

    exit_code = 1


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
        ControllerGone: there is none.
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
            raise ControllerGone(f"no controller at {host}:{port} within {wait:g} s: {why}")
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
        identity = identity_of(os.environ, address=own)
        guest = Guest(token, identity, versions=versions)
        connection.sendall(guest.begin())
        while guest.keys is None:
            data = connection.recv(4096)
            if not data:
                raise ConnectionAbortedError("it closed the connection during the handshake")
            connection.sendall(guest.feed(data))
    except BaseException:
        connection.close()
        raise
    keys = guest.keys
    link = Link(connection, sealing=keys.to_controller, opening=keys.to_agent, received=guest.rest())
    return link, identity
