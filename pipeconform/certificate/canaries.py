"""Canaries: implementations that are wrong on purpose, run where a verdict is to be trusted.

A green result means little on a machine that cannot see a wrong one. A certification runs every fault of its
mandatory requirements in the same environment; ``pipeconform selftest`` runs a selection of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import msgspec

from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import places_of
from pipeconform.campaign.trial import Fault, faults, try_fault
from pipeconform.certificate.contents import Canary
from pipeconform.ranks.protocols import RankPools
from pipeconform.replication.trial import try_wrapper_fault, wrapper_faults

__all__ = ["faults_of", "one_each", "run_canaries"]


def faults_of(requirements: Iterable[str]) -> tuple[Fault, ...]:
    """Every fault that breaks one of `requirements`, of pipelines or of wrappers."""
    wanted = set(requirements)
    every = (*faults().values(), *wrapper_faults().values())
    return tuple(fault for fault in every if fault.requirement in wanted)


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
    run_id: str = "",
    begin: Callable[[Fault], None] = lambda fault: None,
    tell: Callable[[Canary], None] = lambda canary: None,
) -> tuple[Canary, ...]:
    """Run `chosen` faults, each until it is caught; `begin` is called before each and `tell` after it.

    Of `options` only the devices and the agents count.

    Raises:
        HarnessError: processes cannot be started.
    """
    found = []
    with ExitStack() as stack:
        pools = stack.enter_context(places_of(options, stack).pools(None))
        for fault in chosen:
            begin(fault)
            canary = msgspec.structs.replace(_tried(fault, pools), shard=shard, run_id=run_id)
            tell(canary)
            found.append(canary)
    return tuple(found)


def _tried(fault: Fault, pools: RankPools) -> Canary:
    trial = (try_wrapper_fault if wrapper_faults().get(fault.name) is fault else try_fault)(fault, pools)
    return Canary(
        fault=fault.name,
        requirement=fault.requirement,
        schedule=fault.schedule,
        expected=fault.expected_status,
        detected=trial.detected,
        shown=trial.shown,
        seconds=trial.seconds,
    )
