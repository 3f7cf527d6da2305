"""Warm ranks, and a place where nothing but what an exported program needs can be imported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.programs.running import Place
from pipeconform.campaign.preload import PRELOAD
from pipeconform.export.question import Question
from pipeconform.ranks.pools import Pools
from tests.warm_servers import WarmServers

Shown = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def pools(warm_servers: WarmServers) -> Iterator[Pools]:
    with warm_servers.used():
        made = Pools(preload=PRELOAD)
    with made:
        yield made


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    """Write a question as a program, run it where neither this package nor Hypothesis can be imported, and see."""
    place = Place(tmp_path)

    def run(
        question: Question | None = None,
        *,
        implementation: str = "",
        arguments: tuple[str, ...] = (),
        change: Callable[[str], str] = str,
    ) -> subprocess.CompletedProcess[str]:
        if question is not None:
            place.write(question, implementation=implementation, change=change)
        return place.run(*arguments)

    return run
