"""Warm ranks for wrapper cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeconform.campaign.preload import PRELOAD
from pipeconform.ranks.pools import Pools
from tests.warm_servers import WarmServers


@pytest.fixture(scope="session")
def pools(warm_servers: WarmServers) -> Iterator[Pools]:
    with warm_servers.used():
        made = Pools(preload=PRELOAD)
    with made:
        yield made
