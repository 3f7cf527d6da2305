"""The files behind the adapter of a certified implementation, as a rank process finds them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pipeconform.campaign.campaign import Campaign
from pipeconform.errors import HarnessError
from pipeconform.execute.engine import Component
from pipeconform.plural import plural

__all__ = ["engine_in", "engine_text"]

_TASK = "pipeconform.execute.engine:answer"
_LIMIT = 600.0  # seconds; gigabytes may have to be read


def engine_in(campaign: Campaign) -> tuple[Component, ...]:
    """The components of the implementation that a campaign judges, as its rank processes find them.

    Raises:
        HarnessError: the rank process died or hung, or could not read the files.
    """
    runner = campaign.runner("default")
    vector = runner.pools.oracle.run(_TASK, runner.implementation.encode(), time_limit=_LIMIT)
    if not vector.ok:
        raise HarnessError(f"reading the engine's files failed:\n{vector.describe()}")
    return msgspec.msgpack.decode(vector.values[0], type=tuple[Component, ...])


def engine_text(engine: Iterable[Component]) -> str:
    """The components in one line."""
    parts = [
        f"{one.name} {one.version}".strip() + f" ({plural(one.files, 'file')}, {one.digest[:12]})"
        for one in engine
    ]
    return ", ".join(parts) or "no files are known"
