"""Warm ranks for wrapper cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeconform.campaign.preload import PRELOAD
from pipeconform.ranks.pools import Pools


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    faults = "pipeconform.reference_impl.faults.faulty_wrappers"
    with Pools(preload=(*PRELOAD, faults, "pipeconform.adapters.torch_wrappers")) as pools:
        yield pools
