"""Builds a campaign from options: the implementation, devices, variants and limits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pipeconform.attach.pools import AttachedPools
from pipeconform.attach.session import attached_devices, controller_of, require_same_source
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.earlier import Earlier, earlier_in
from pipeconform.campaign.here import pools_here, set_up
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.options import Options
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.runner import Runner
from pipeconform.campaign.store import Store
from pipeconform.campaign.targets import target_of
from pipeconform.campaign.variants import Runners
from pipeconform.errors import BadAdapterError, HarnessError, UsageError
from pipeconform.execute import implementation as implementations
from pipeconform.execute.source import Source
from pipeconform.ranks.answered import ask_implementation
from pipeconform.ranks.devices import Devices, require_backend, resolve
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.protocols import RankPools
from pipeconform.showing import shown

__all__ = ["Places", "campaign_of", "places_of", "say"]

_SOURCE_TASK = "pipeconform.execute.source:answer"


@contextmanager
def campaign_of(options: Options) -> Iterator[Campaign]:
    """Start processes, ask the implementation for its description, and yield a campaign; stop the processes at the end.

    Raises:
        UsageError: a name is unknown, the implementation cannot be used, an option does not apply to it, or there are
            too few devices.
        HarnessError: processes cannot be started.
    """
    reference, profile = implementations.resolve(options.implementation), options.sized()
    with ExitStack() as stack:
        places = places_of(options, stack)
        ranks = options.ranks[0], _most_ranks(places.reason_against, options.ranks)
        pools = stack.enter_context(places.pools(None))
        coverage = "" if options.coverage is None else str(options.coverage)
        runner = functools.partial(
            runner_of, implementation=reference, time_limit=options.time_limit, coverage=coverage
        )
        description = describe(pools, reference)
        target = target_of(
            description,
            profile=profile,
            ranks=ranks,
            seed=options.seed,
            examples=options.examples,
            schedules=options.schedules,
        )

        def start(name: str) -> Runner[Any, Any]:
            environment = Environment(name, dict(target.variants[name]))
            variant = stack.enter_context(places.pools(environment))
            # promises may depend on a variant's settings; claims, which decide what is drawn, must not
            own = describe(variant, reference)
            if target_of(own, profile=profile, ranks=ranks).claims != target.claims:
                raise BadAdapterError(
                    f"{options.implementation} claims other capabilities in its variant {name!r}; expected the same "
                    f"claims in every variant, because all variants share their cases"
                )
            return runner(own, pools=variant)

        default = runner(description, pools=pools)
        runners = Runners(default, names=target.variants, start=start)
        source = source_in(pools, reference)
        if isinstance(pools, AttachedPools):
            require_same_source(pools, reference, source)
        yield Campaign(
            target=target,
            runners=runners,
            implementation=options.implementation,
            store=Store(folder=options.share),
            expectations=() if options.expectations is None else options.expectations.entries,
            device=places.devices.device_type,
            source=source,
            kept=None if options.keep_cases is None else KeptCases(options.keep_cases),
            earlier=Earlier()
            if options.earlier is None
            else earlier_in(options.earlier, implementation=target.name),
        )


@dataclass(frozen=True)
class Places:
    """Where ranks run: on this machine, or on attached agents."""

    devices: Devices
    reason_against: Callable[[int], str | None]
    pools: Callable[[Environment | None], AbstractContextManager[Pools | AttachedPools]]


def places_of(options: Options, stack: ExitStack) -> Places:
    """Decide where the ranks of a run execute; wait for agents, and release them when `stack` unwinds.

    Raises:
        UsageError: the device or backend is unknown, there is no token, or an option does not go with agents.
        TooFewAgentsError: not enough agents connected.
    """
    if options.attach is not None and options.show_output:
        raise UsageError(
            "--show-output shows what ranks of this machine print; with --attach they print on other hosts, and the "
            "last 4 KiB of each stand with its verdict"
        )
    if options.attach is not None and options.coverage is not None:
        raise UsageError("--coverage needs ranks of this machine, so it does not go with --attach")
    device, backend, share = options.device, options.backend, options.ranks_per_device
    if options.attach is None:
        devices = resolve(device, backend=backend, ranks_per_device=share)
        if backend != "auto":
            require_backend(backend)

        def here(one: Environment | None) -> Pools:
            return pools_here(
                one,
                devices,
                preload=PRELOAD if options.coverage is None else (*PRELOAD, "coverage"),
                shows_output=options.show_output,
                debugger=options.debugger,
            )

        return Places(devices, devices.reason_against, here)
    devices = attached_devices(device, backend=backend, ranks_per_device=share)
    controller = stack.enter_context(
        controller_of(options.attach, devices=devices, largest=options.ranks[1], say=say)
    )
    return Places(
        devices,
        controller.quorum.reason_against,
        lambda one: controller.pools(set_up(one, devices), preload=PRELOAD),
    )


def say(text: str) -> None:
    """Report on agents to standard error, apart from a command's output."""
    print(f"pipeconform: {shown(text)}", file=sys.stderr, flush=True)


def _most_ranks(reason_against: Callable[[int], str | None], wanted: tuple[int, int]) -> int:
    least, most = wanted
    while most > least and reason_against(most) is not None:
        most -= 1
    reason = reason_against(least)
    if reason is not None:
        raise UsageError(reason)
    return most


def source_in(pools: RankPools, reference: str) -> Source:
    """The source file of the adapter `reference`, as rank processes import it.

    Raises:
        HarnessError: the rank process died or hung.
    """
    vector = ask_implementation(pools, _SOURCE_TASK, reference, answer=Source, time_limit=120.0)
    if not vector.ok:
        raise HarnessError(f"reading the adapter's source failed:\n{vector.describe()}")
    found: Source = vector.values[0]
    return found
