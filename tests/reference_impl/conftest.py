"""Warm rank processes for the folder; ranks import `reference_ranks` and `reference_models` from here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeconform.campaign.preload import PRELOAD
from pipeconform.ranks.pools import Pools

sys.path.insert(0, str(Path(__file__).parent))

_PRELOAD = (
    *PRELOAD,  # what a rank imports on first use, DistributedDataParallel above all, every new one would import again
    "pipeconform.reference_impl.adapter",
    "reference_ranks",
    "replica_ranks",
)


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    with Pools(preload=_PRELOAD) as pools:
        yield pools
