"""The files behind the adapter of a certified implementation: asked of a rank process, and shown."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pipeconform.errors import HarnessError
from pipeconform.execute.engine import Component
from pipeconform.replication.campaign import WrapperCampaign
from pipeconform.replication.either import AnyCampaign

__all__ = ["engine_in", "engine_text"]

_TASK = "pipeconform.execute.engine:answer"
_LIMIT = 600.0  # seconds: some gigabytes may be read


def engine_in(campaign: AnyCampaign) -> tuple[Component, ...]:
    """The components of the implementation that a campaign judges, as its rank processes find them.

    Raises:
        HarnessError: the process that was asked died or hung, or could not read the files.
    """
    if isinstance(campaign, WrapperCampaign):
        pools, reference = campaign.pools, campaign.reference
    else:
        executor = campaign.executors["default"]
        pools, reference = executor.pools, executor.implementation
    vector = pools.oracle.run(_TASK, reference.encode(), time_limit=_LIMIT)
    if not vector.ok:
        raise HarnessError(f"reading the engine's files failed:\n{vector.describe()}")
    return msgspec.msgpack.decode(vector.values[0], type=tuple[Component, ...])


def engine_text(engine: Iterable[Component]) -> str:
    """Its components in a line."""
    parts = [
        f"{one.name} {one.version}".strip() + f" ({one.files:,} files, {one.digest[:12]})" for one in engine
    ]
    return ", ".join(parts) or "no files are known"
