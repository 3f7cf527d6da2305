"""Warm ranks for wrapper cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeconform.ranks.pools import Pools
from pipeconform.replication.campaign import PRELOAD


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    faults = "pipeconform.reference_impl.faults.registry_wrappers"
    with Pools(preload=(*PRELOAD, faults, "pipeconform.adapters.torch_wrappers")) as pools:
        yield pools
