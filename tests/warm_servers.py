"""Fork servers that outlive the runs of a test: every run in this process would otherwise import torch anew.

Ranks are forked for each run and ended with it as always; what they share is a process that has imported the modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from pipeconform.campaign.preload import PRELOAD
from pipeconform.ranks import pools, prestart
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.forkserver import ForkServer

_WARM = (
    *PRELOAD,
    "pipeconform.reference_impl.adapter",
    "pipeconform.reference_impl.faults.faulty_wrappers",
    "pipeconform.adapters.torch_wrappers",
    *(("coverage",) if find_spec("coverage") else ()),  # which the environment of other engines does not have
)
"""What a server has imported that is asked for some of it."""
_MOST = 3
_OF_PYTEST = "PYTEST_"
"""Begins the names of variables that change from test to test, and in runs of this process; ranks read none of them."""


class _Kept(ForkServer):
    """A server that whoever uses it does not end."""

    def close(self) -> None:
        """Stay for the next user, who did not ask for these ranks; all have been ended by the pools they are in."""

    end = ForkServer.close


class WarmServers:
    """Servers by what must be equal for one to stand in for another; the least recently used is ended for another."""

    def __init__(self) -> None:
        self._kept: dict[object, _Kept] = {}

    def server_of(self, environment: Environment, *, preload: Sequence[str]) -> ForkServer:
        """What `pipeconform.ranks.prestart.server_of` is, for the tests of one process."""
        preload = _WARM if preload and set(preload) <= set(_WARM) else tuple(preload)
        variables = environment.process_environment()
        key = (
            environment.name,
            tuple(preload),
            frozenset(item for item in variables.items() if not item[0].startswith(_OF_PYTEST)),
            tuple(sys.path),
        )
        server = self._kept.pop(key, None)
        if server is None or not server.alive:
            server = _Kept(environment, preload=preload)
        self._kept[key] = server
        while len(self._kept) > _MOST:
            self._kept.pop(next(iter(self._kept))).end()
        return server

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let pools that are made in this context have these servers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pools, "server_of", self.server_of)
            patch.setattr(prestart, "start_ahead", lambda *, preload: None)  # it would start another
            yield

    def close(self) -> None:
        """End them all."""
        while self._kept:
            self._kept.popitem()[1].end()
