"""Canaries: implementations that are wrong on purpose, run to show that a machine's verdicts can be trusted.

A green result means little on a machine that cannot detect a wrong implementation. A certification runs every fault of
its mandatory requirements in the same environment; ``pipeconform selftest`` runs a selection of all faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import msgspec

from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import places_of
from pipeconform.campaign.trial import Fault, faults, try_fault, wrapper_faults
from pipeconform.certificate.contents import Canary
from pipeconform.ranks.protocols import RankPools

__all__ = ["faults_of", "one_each", "run_canaries"]


def faults_of(requirements: Iterable[str]) -> tuple[Fault, ...]:
    """Every fault, of pipelines or of wrappers, that breaks one of `requirements`."""
    wanted = set(requirements)
    every = (*faults().values(), *wrapper_faults().values())
    return tuple(fault for fault in every if fault.requirement in wanted)


def one_each(found: Iterable[Fault]) -> tuple[Fault, ...]:
    """The first of several faults for each requirement and each expected status."""
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

    Only the devices and the agents of `options` are used.

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
    trial = try_fault(fault, pools)
    return Canary(
        fault=fault.name,
        requirement=fault.requirement,
        schedule=fault.schedule,
        expected=fault.expected_status,
        detected=trial.detected,
        shown=trial.shown,
        seconds=trial.seconds,
    )
