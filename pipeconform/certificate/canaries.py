"""Canaries: implementations that are wrong on purpose, run where the certification ran.

A green result means little on a machine that cannot see a wrong one. Every mandatory requirement must
catch its faults in the same environment.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge
from pipeconform.campaign.setup import PRELOAD, Options
from pipeconform.case.case import Case
from pipeconform.case.strategies import Limits
from pipeconform.certificate.contents import Canary
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.run.devices import resolve
from pipeconform.run.pools import Pools
from pipeconform.spec import requirement

__all__ = ["run_canaries"]

_REGISTRY = "pipeconform.reference_impl.faults"  # found by name: the product does not import the reference
_LEAST_RANKS, _MOST_RANKS = 2, 3
_CASES = 12


def run_canaries(
    requirements: Iterable[str],
    *,
    options: Options,
    shard: str = "",
    tell: Callable[[Canary], None] = lambda canary: None,
) -> tuple[Canary, ...]:
    """Run every fault that breaks one of `requirements`, each until it is caught.

    Of `options` only the device counts. `tell` is called after each.

    Raises:
        HarnessError: processes cannot be started.
    """
    wanted = set(requirements)
    faults = [
        fault for fault in importlib.import_module(_REGISTRY).FAULTS.values() if fault.requirement in wanted
    ]
    devices = resolve(options.device, backend=options.backend, ranks_per_device=options.ranks_per_device)
    found = []
    with Pools(preload=PRELOAD, devices=devices) as pools:
        for fault in faults:
            canary = _tried(fault, pools, shard)
            tell(canary)
            found.append(canary)
    return tuple(found)


def _tried(fault: Any, pools: Pools, shard: str) -> Canary:
    begun = time.monotonic()
    description = describe(pools, fault.reference)
    pools.idle_limit = description.capabilities.patience
    executor = Executor(implementation=fault.reference, description=description, pools=pools)
    shown: list[str] = []
    detected = False
    for case in _cases(fault, executor):
        execution = executor.execute(case, observe=JUDGEMENTS[fault.requirement].observe)
        outcomes = judge(requirement(fault.requirement), execution, executor)
        shown += [f"{outcome.status}: {outcome.finding.kind}" for outcome in outcomes]
        detected = any(outcome.status.value == fault.expected_status for outcome in outcomes)
        if detected:
            break
    return Canary(
        fault=fault.name,
        requirement=fault.requirement,
        schedule=fault.schedule,
        expected=fault.expected_status,
        detected=detected,
        shown=tuple(dict.fromkeys(shown)),
        seconds=round(time.monotonic() - begun, 3),
        shard=shard,
    )


def _cases(fault: Any, executor: Executor) -> Iterator[Case]:
    """What the suite would judge the fault's requirement on."""
    capabilities = executor.capabilities
    claim = capabilities.schedule(fault.schedule)
    assert claim is not None, "a fault shows under a schedule that it claims"
    judgement = JUDGEMENTS[fault.requirement]
    for focus in judgement.foci(claim, capabilities):
        limits = Limits(capabilities=capabilities, min_ranks=_LEAST_RANKS, max_ranks=_MOST_RANKS)
        for case in drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=0, size=_CASES)):
            if judgement.applies(case):
                yield case
