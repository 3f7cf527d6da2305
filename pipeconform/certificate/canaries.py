"""Canaries: implementations that are wrong on purpose, run where a verdict is to be trusted.

A green result means little on a machine that cannot see a wrong one. A certification runs every fault of its
mandatory requirements in the same environment; ``pipeconform selftest`` runs a selection of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeconform.campaign.setup import PRELOAD, Options
from pipeconform.campaign.trial import Fault, faults, try_fault
from pipeconform.certificate.contents import Canary
from pipeconform.run.devices import resolve
from pipeconform.run.pools import Pools

__all__ = ["faults_of", "one_each", "run_canaries"]


def faults_of(requirements: Iterable[str]) -> tuple[Fault, ...]:
    """Every fault that breaks one of `requirements`."""
    wanted = set(requirements)
    return tuple(fault for fault in faults().values() if fault.requirement in wanted)


def one_each(found: Iterable[Fault]) -> tuple[Fault, ...]:
    """Of several faults the first for each requirement and each status that it shows."""
    first: dict[tuple[str, str], Fault] = {}
    for fault in found:
        first.setdefault((fault.requirement, fault.expected_status), fault)
    return tuple(first.values())


def run_canaries(
    chosen: Iterable[Fault],
    *,
    options: Options,
    shard: str = "",
    begin: Callable[[Fault], None] = lambda fault: None,
    tell: Callable[[Canary], None] = lambda canary: None,
) -> tuple[Canary, ...]:
    """Run `chosen` faults, each until it is caught; `begin` is called before each and `tell` after it.

    Of `options` only the device counts.

    Raises:
        HarnessError: processes cannot be started.
    """
    devices = resolve(options.device, backend=options.backend, ranks_per_device=options.ranks_per_device)
    found = []
    with Pools(preload=PRELOAD, devices=devices) as pools:
        for fault in chosen:
            begin(fault)
            canary = _tried(fault, pools, shard)
            tell(canary)
            found.append(canary)
    return tuple(found)


def _tried(fault: Fault, pools: Pools, shard: str) -> Canary:
    trial = try_fault(fault, pools)
    return Canary(
        fault=fault.name,
        requirement=fault.requirement,
        schedule=fault.schedule,
        expected=fault.expected_status,
        detected=trial.detected,
        shown=trial.shown,
        seconds=trial.seconds,
        shard=shard,
    )
