"""Runs tasks on rank processes and gives one verdict per rank.

Names load on first use, so that a rank or the fork server imports only what it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeconform.ranks.crew import Crew
    from pipeconform.ranks.devices import Devices, resolve
    from pipeconform.ranks.environment import Environment
    from pipeconform.ranks.forkserver import ForkServer
    from pipeconform.ranks.pool import Pending, Pool
    from pipeconform.ranks.pools import Pools
    from pipeconform.ranks.rank import RankContext
    from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, Verdict, VerdictVector

__all__ = [
    "Crew",
    "Devices",
    "Died",
    "Environment",
    "ForkServer",
    "Pending",
    "Pool",
    "Pools",
    "Raised",
    "RankContext",
    "Returned",
    "Stuck",
    "Verdict",
    "VerdictVector",
    "resolve",
]

_HOMES = {
    "Crew": "crew",
    "Devices": "devices",
    "Died": "verdict",
    "Environment": "environment",
    "ForkServer": "forkserver",
    "Pending": "pool",
    "Pool": "pool",
    "Pools": "pools",
    "Raised": "verdict",
    "RankContext": "rank",
    "Returned": "verdict",
    "Stuck": "verdict",
    "Verdict": "verdict",
    "VerdictVector": "verdict",
    "resolve": "devices",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
