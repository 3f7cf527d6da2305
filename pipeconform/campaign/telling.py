"""What a process that judges cells reports about its campaign: for the result file, and for scheduling cells."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from importlib import metadata

import msgspec

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.target import NotAsked
from pipeconform.campaign.told import Told, Weight, group_of
from pipeconform.report.result import Environment, Implementation
from pipeconform.spec.catalogue import requirements_of

__all__ = ["environment_of", "implementation_of", "tell", "weights"]


def tell(campaign: Campaign, wanted: tuple[str, ...]) -> Told:
    """The report on what was judged, where, and on how many cases; `wanted` names the schedules asked for."""
    target = campaign.target
    columns = target.chosen(wanted)
    return Told(
        environment=environment_of(campaign),
        implementation=implementation_of(campaign),
        schedules=columns,
        executed=campaign.executed,
        num_ranks=campaign.num_ranks,
        reached=tuple(sorted(campaign.points)),
        reachable=tuple(sorted(target.reachable(columns))),
        max_ranks=target.max_ranks,
        search=target.profile.search,
    )


def weights(campaign: Campaign) -> dict[str, Weight]:
    """The estimated cost of judging each group of cells, from the claims."""
    found: dict[str, Weight] = {}
    target = campaign.target
    for row in requirements_of(target.kind):
        for column in target.columns:
            asked = target.ask(row, column, promises=lambda: True)
            if isinstance(asked, NotAsked):
                continue
            group, cells = group_of(row.id, column), len(campaign.variants_of(row.id))
            known = found.get(group, Weight(0, 0))
            found[group] = Weight(max(known.num_ranks, asked.num_ranks), known.num_cells + cells)
    return found


def implementation_of(campaign: Campaign) -> Implementation:
    """The implementation, as the result file describes it."""
    target, source = campaign.target, campaign.source
    return Implementation(
        reference=campaign.implementation,
        name=target.name,
        version=target.version,
        kind=target.kind,
        built_on=target.built_on,
        capabilities=msgspec.to_builtins(target.claims, order="deterministic"),
        source=source.name,
        source_digest=hashlib.sha256(source.text).hexdigest() if source.name else "",
        errors=msgspec.to_builtins(target.errors, order="deterministic"),
    )


def environment_of(campaign: Campaign) -> Environment:
    """The machine, the versions, and the settings that the rank processes report."""
    pools = {name: runner.pools for name, runner in campaign.started.items()}
    variables: dict[str, dict[str, str | None]] = {}
    for name, one in pools.items():
        effective: Mapping[str, str | None] = one.environment.effective()
        reported = one.oracle.wait_until_formed()[0]
        pinned = {key: value for key, value in reported.items() if key.startswith("torch.")}
        variables[name] = {**{key: reported.get(key, value) for key, value in effective.items()}, **pinned}
    devices = pools["default"].devices
    return Environment(
        python=platform.python_version(),
        torch=metadata.version("torch"),
        os=platform.platform(),
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        device=devices.device_type,
        backend=devices.backend,
        device_names=(*pools["default"].hosts, *devices.names),
        variables=variables,
    )
