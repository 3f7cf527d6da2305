"""From what was asked for to a campaign, and from what it found to a result."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata

import msgspec

import pipeconform
from pipeconform.replication.campaign import PRELOAD, WrapperCampaign, describe
from pipeconform.replication.implementations import resolve
from pipeconform.replication.result import WrapperCell, WrapperResult
from pipeconform.report.result import Environment, Implementation
from pipeconform.run import devices
from pipeconform.run.pools import Pools
from pipeconform.run.source import Source
from pipeconform.spec import STANDARD_VERSION, rule_digest
from pipeconform.spec.wrappers import wrapper_chapter, wrapper_requirement

__all__ = ["campaign_of", "result_of", "selected"]

_SOURCE_TASK = "pipeconform.run.source:answer"


@contextmanager
def campaign_of(name: str, *, seed: int = 0) -> Iterator[WrapperCampaign]:
    """Start processes, let the wrapper describe itself, and yield a campaign; all ends with it.

    Wrappers are judged on the CPU.

    Raises:
        BadAdapterError: it cannot be imported, lacks a method or describes itself wrongly.
        HarnessError: processes cannot be started.
    """
    reference = resolve(name)
    with Pools(preload=PRELOAD, devices=devices.resolve("cpu")) as pools:
        description = describe(pools, reference)
        pools.idle_limit = description.claims.patience
        yield WrapperCampaign(
            implementation=name, reference=reference, description=description, pools=pools, seed=seed
        )


def selected(wanted: Iterable[str]) -> tuple[str, ...]:
    """The requirements that were asked for, in the order of the chapter; all where nothing or the chapter was.

    Raises:
        UnknownNameError: there is no such requirement.
    """
    every = tuple(row.id for row in wrapper_chapter().requirements)
    names = [name.upper() for name in wanted]
    if not names or wrapper_chapter().id in names:
        return every
    chosen = {wrapper_requirement(name).id for name in names}
    return tuple(name for name in every if name in chosen)


def result_of(
    campaign: WrapperCampaign, cells: Iterable[WrapperCell], *, selection: str = ""
) -> WrapperResult:
    """Everything that was found."""
    found = sorted(cells, key=lambda cell: int(cell.requirement.partition("-")[2]))
    where = campaign.pools.devices
    vector = campaign.pools.oracle.run(_SOURCE_TASK, campaign.reference.encode(), time_limit=120.0)
    source = msgspec.msgpack.decode(vector.values[0], type=Source) if vector.ok else Source()
    return WrapperResult(
        product_version=pipeconform.__version__,
        standard_version=STANDARD_VERSION,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=Environment(
            python=platform.python_version(),
            torch=metadata.version("torch"),
            os=platform.platform(),
            machine=platform.machine(),
            cpus=os.cpu_count() or 1,
            device=where.device_type,
            backend=where.backend,
        ),
        implementation=Implementation(
            reference=campaign.implementation,
            name=campaign.description.name,
            version=campaign.description.version,
            capabilities=msgspec.to_builtins(campaign.description.claims, order="deterministic"),
            source=source.name,
            source_digest=hashlib.sha256(source.text).hexdigest() if source.name else "",
        ),
        seed=campaign.seed,
        selection=selection,
        executions=sum(campaign.executed.values()),
        distinct_cases=len(campaign.executed),
        cells=tuple(found),
        rules={cell.requirement: rule_digest(wrapper_requirement(cell.requirement)) for cell in found},
    )
