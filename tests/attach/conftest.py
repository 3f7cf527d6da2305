"""Hubs and agents for the tests of this folder; see sites.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeconform.attach.pools import AttachedPools, Controller
from tests.attach.sites import GUARD, PRELOAD, TOKEN, Site, controller_of, make_site


@pytest.hookimpl(tryfirst=True)  # before the rest of the tests that share something are kept together
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share two agents in one process of pytest-xdist: agents take seconds to start.

    Without the command openssl no run has attached ranks, and the tests of this folder are skipped.
    """
    for item in items:
        if shutil.which("openssl") is None and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason="needs the command openssl"))
        if "two_agents" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("attach/two agents"))


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    """Make a hub of the test's own; `how` are `Hub`'s limits."""
    sites: list[Site] = []

    def make(**how: float) -> Site:
        sites.append(make_site(**how))
        return sites[-1]

    yield make
    for one in sites:
        one.close()


@pytest.fixture(scope="session")
def two_agents() -> Iterator[tuple[Site, Controller]]:
    """Two agents that no test may end."""
    site = make_site()
    try:
        for rank in range(2):
            site.start(rank)
        controller = controller_of(site, least=2)
        controller.gather(limit=GUARD)
        controller.least_idle = 1.0
        yield site, controller
    finally:
        site.close()


@pytest.fixture(scope="session")
def attached(two_agents: tuple[Site, Controller]) -> Iterator[AttachedPools]:
    """Pools over the two agents that know the tasks of these tests."""
    with two_agents[1].pools(preload=PRELOAD, idle_limit=1.0) as pools:
        yield pools


@pytest.fixture
def launched() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes with the token; none outlives its test."""
    processes: list[subprocess.Popen[str]] = []

    def launch(*command: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PIPECONFORM_TOKEN": TOKEN, **variables}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return processes[-1]

    yield launch
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
