"""From options to a campaign that judges a wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from pipeconform.campaign.earlier import Earlier, earlier_in
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import source_in
from pipeconform.errors import UsageError
from pipeconform.execute.implementation import resolve
from pipeconform.ranks import devices
from pipeconform.ranks.pools import Pools
from pipeconform.replication.campaign import PRELOAD, WrapperCampaign, describe

__all__ = ["require_sense", "wrapper_campaign_of"]


@contextmanager
def wrapper_campaign_of(options: Options) -> Iterator[WrapperCampaign]:
    """Start processes, let the wrapper describe itself, and yield a campaign; all ends with it.

    Wrappers are judged on the CPU of this machine.

    Raises:
        BadAdapterError: it cannot be imported, lacks a method or describes itself wrongly.
        UsageError: an option that says nothing about wrappers.
        HarnessError: processes cannot be started.
    """
    require_sense(options)
    reference, sized = resolve(options.implementation), options.sized()
    with Pools(preload=PRELOAD, devices=devices.resolve("cpu")) as pools:
        description = describe(pools, reference)
        pools.idle_limit = description.claims.patience
        yield WrapperCampaign(
            implementation=options.implementation,
            reference=reference,
            description=description,
            pools=pools,
            seed=options.seed,
            profile=msgspec.structs.replace(sized, search=sized.wrapper_search),
            ranks=options.ranks,
            examples=options.examples,
            expectations=() if options.expectations is None else options.expectations.entries,
            kept=None if options.keep_cases is None else KeptCases(options.keep_cases),
            earlier=Earlier()
            if options.earlier is None
            else earlier_in(options.earlier, implementation=description.name),
            source=source_in(pools, reference),
        )


def require_sense(options: Options) -> None:
    """Refuse what a wrapper has not, or is not judged on.

    Raises:
        UsageError: there is an option that says nothing about wrappers.
    """
    name = options.implementation
    if options.schedules:
        raise UsageError(
            f"--schedules: {name} is a data-parallel wrapper, which has no schedules; leave it out"
        )
    if options.attach is not None:
        raise UsageError(
            f"--attach: {name} is a data-parallel wrapper, and those are judged on this machine only"
        )
    if options.device not in ("cpu", "auto") or options.backend not in ("gloo", "auto"):
        raise UsageError(
            f"--device {options.device} --backend {options.backend}: {name} is a data-parallel wrapper, "
            f"and those are judged on the CPU with gloo only"
        )
