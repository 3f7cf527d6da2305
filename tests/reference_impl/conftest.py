"""Warm rank processes for the folder; ranks import `reference_ranks` and `reference_models` from here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeconform.ranks.pools import Pools

sys.path.insert(0, str(Path(__file__).parent))

_PRELOAD = (
    "torch",
    "torch.distributed",
    "pipeconform.execute.worker",
    "pipeconform.oracle.full_model",
    "pipeconform.reference_impl.adapter",
    "reference_ranks",
)


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    with Pools(preload=_PRELOAD) as pools:
        yield pools
