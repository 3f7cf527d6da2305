"""Starts a fork server ahead of its first use: it imports torch while its controller still does the same."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence

from pipeconform.errors import PoolError
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.forkserver import ForkServer

__all__ = ["drop_ahead", "server_of", "start_ahead"]

_Key = tuple[Environment, tuple[str, ...], tuple[str, ...]]
"""What must be equal for one server to stand in for another: environment, preloaded modules, import path."""


def start_ahead(*, preload: Sequence[str]) -> None:
    """Start the server that the first `server_of` with the default environment and `preload` will return."""
    drop_ahead()
    with contextlib.suppress(PoolError):  # server_of tries again, and raises
        environment = Environment()
        _waiting().append((_key(environment, preload), ForkServer(environment, preload=preload)))


def server_of(environment: Environment, *, preload: Sequence[str]) -> ForkServer:
    """The server that was started ahead, if it was started with the same settings; otherwise a new one.

    Raises:
        PoolError: no server can be started.
    """
    while _waiting():
        key, server = _waiting().pop()
        if key == _key(environment, preload) and server.alive:
            return server
        server.close()
    return ForkServer(environment, preload=preload)


def drop_ahead() -> None:
    """End the server that was started ahead and never used, if there is one."""
    while _waiting():
        _waiting().pop()[1].close()


@functools.cache
def _waiting() -> list[tuple[_Key, ForkServer]]:
    """The server that was started ahead; at most one."""
    return []


def _key(environment: Environment, preload: Sequence[str]) -> _Key:
    return environment, tuple(preload), tuple(sys.path)
