"""From options to a campaign: implementation, devices, variants, limits."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Protocol

import msgspec

from pipeconform.adapter import Description
from pipeconform.attach.pools import AttachedPools
from pipeconform.attach.session import attached_devices, controller_of, require_same_source
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.earlier import Earlier, earlier_in
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.here import pools_here, set_up
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.options import Options
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.store import Store
from pipeconform.campaign.variants import Executors
from pipeconform.case.strategies import Limits
from pipeconform.errors import BadAdapterError, HarnessError, UnknownNameError, UsageError
from pipeconform.execute import implementation as implementations
from pipeconform.execute.source import Source
from pipeconform.ranks.answered import ask_implementation
from pipeconform.ranks.devices import Devices, resolve
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.protocols import RankPools
from pipeconform.report.result import Environment as EnvironmentReport
from pipeconform.report.result import Implementation
from pipeconform.showing import shown
from pipeconform.spec.wrappers import Kind

__all__ = [
    "Places",
    "campaign_of",
    "chosen_schedules",
    "environment_of",
    "environment_report",
    "implementation_of",
    "implementation_report",
    "places_of",
    "say",
    "source_in",
    "source_of",
]

SOURCE_TASK = "pipeconform.execute.source:answer"


def chosen_schedules(description: Description, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The claimed schedules, or those of them that were asked for, whatever the case of the letters.

    Raises:
        UnknownNameError: one asked for is not claimed.
    """
    claimed = [claim.name for claim in description.capabilities.schedules]
    if not wanted:
        return tuple(claimed)
    by_folded = {name.casefold(): name for name in claimed}
    for name in wanted:
        if name.casefold() not in by_folded:
            raise UnknownNameError(f"schedule (of {description.name})", name, claimed)
    return tuple(name for name in claimed if name.casefold() in {w.casefold() for w in wanted})


@contextmanager
def campaign_of(options: Options) -> Iterator[Campaign]:
    """Start processes, let the implementation describe itself, and yield a campaign; all ends with it.

    Raises:
        UsageError: an unknown name, a wrong implementation, too few devices.
        HarnessError: processes cannot be started.
    """
    reference = implementations.resolve(options.implementation)
    with ExitStack() as stack:
        places = places_of(options, stack)
        devices, most = places.devices, _most_ranks(places.reason_against, options.ranks)
        pools = stack.enter_context(places.pools(None))
        description = describe(pools, reference)
        pools.idle_limit = description.capabilities.patience

        def start(name: str) -> Executor:
            environment = Environment(name, dict(description.variants[name]))
            variant = stack.enter_context(places.pools(environment))
            variant.idle_limit = description.capabilities.patience
            # what is promised may depend on the settings; what is claimed, and so drawn, must not
            own = describe(variant, reference)
            if own.capabilities != description.capabilities:
                raise BadAdapterError(
                    f"{options.implementation} claims other capabilities in its variant {name!r}: cases are the same"
                )
            return Executor(implementation=reference, description=own, pools=variant)

        default = Executor(implementation=reference, description=description, pools=pools)
        executors = Executors(default, start)
        source = source_of(default)
        if isinstance(pools, AttachedPools):
            require_same_source(pools, reference, source)
        yield Campaign(
            executors=executors,
            profile=options.sized(),
            seed=options.seed,
            limits=Limits(capabilities=description.capabilities, min_ranks=options.ranks[0], max_ranks=most),
            store=Store(folder=options.share),
            implementation=options.implementation,
            schedules=chosen_schedules(description, options.schedules) if options.schedules else (),
            expectations=() if options.expectations is None else options.expectations.entries,
            device=devices.device_type,
            source=source,
            kept=None if options.keep_cases is None else KeptCases(options.keep_cases),
            earlier=Earlier()
            if options.earlier is None
            else earlier_in(options.earlier, implementation=description.name),
        )


@dataclass(frozen=True)
class Places:
    """Where ranks run: on this machine, or on the agents that have come."""

    devices: Devices
    reason_against: Callable[[int], str | None]
    pools: Callable[[Environment | None], AbstractContextManager[Pools | AttachedPools]]


def places_of(options: Options, stack: ExitStack) -> Places:
    """Where the ranks of a run are to be; agents are waited for, and sent home when `stack` unwinds.

    Raises:
        UsageError: an unknown device or backend, or no token.
        TooFewAgentsError: not enough agents came.
    """
    device, backend, share = options.device, options.backend, options.ranks_per_device
    if options.attach is None:
        devices = resolve(device, backend=backend, ranks_per_device=share)
        return Places(devices, devices.reason_against, lambda one: pools_here(one, devices))
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
    """Tell what happens to agents, apart from what a command prints."""
    print(f"pipeconform: {shown(text)}", file=sys.stderr, flush=True)


def _most_ranks(reason_against: Callable[[int], str | None], wanted: tuple[int, int]) -> int:
    least, most = wanted
    while most > least and reason_against(most) is not None:
        most -= 1
    reason = reason_against(least)
    if reason is not None:
        raise UsageError(reason)
    return most


def environment_report(campaign: Campaign) -> EnvironmentReport:
    """Where the run takes place, with the settings that the rank processes report."""
    started = campaign.executors.started if isinstance(campaign.executors, Executors) else campaign.executors
    return environment_of({name: executor.pools for name, executor in started.items()})


def environment_of(started: Mapping[str, RankPools]) -> EnvironmentReport:
    """Where ranks run, by environment variant."""
    devices = started["default"].devices
    variables: dict[str, dict[str, str | None]] = {}
    for name, pools in started.items():
        effective: Mapping[str, str | None] = pools.environment.effective()
        reported = pools.oracle.wait_until_formed()[0]
        variables[name] = {key: reported.get(key, value) for key, value in effective.items()}
    return EnvironmentReport(
        python=platform.python_version(),
        torch=metadata.version("torch"),
        os=platform.platform(),
        machine=platform.machine(),
        cpus=os.cpu_count() or 1,
        device=devices.device_type,
        backend=devices.backend,
        device_names=started["default"].hosts,
        variables=variables,
    )


def implementation_report(campaign: Campaign) -> Implementation:
    """What is judged."""
    description = campaign.executors["default"].description
    return implementation_of(
        campaign.implementation,
        description,
        description.capabilities,
        source=campaign.source,
        errors=description.errors,
    )


class Described(Protocol):
    """What an implementation says of itself."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def version(self) -> str:
        """Which one it is."""


def implementation_of(
    reference: str,
    description: Described,
    claims: object,
    *,
    source: Source,
    kind: Kind = "pipeline",
    errors: object = None,
) -> Implementation:
    """What is judged, in a result's words."""
    return Implementation(
        reference=reference,
        name=description.name,
        version=description.version,
        kind=kind,
        capabilities=msgspec.to_builtins(claims, order="deterministic"),
        source=source.name,
        source_digest=hashlib.sha256(source.text).hexdigest() if source.name else "",
        errors=msgspec.to_builtins(errors, order="deterministic"),
    )


def source_of(executor: Executor) -> Source:
    """The adapter's source file, as the rank processes import it.

    Raises:
        HarnessError: the process that was asked died or hung.
    """
    return source_in(executor.pools, executor.implementation)


def source_in(pools: RankPools, reference: str) -> Source:
    """Likewise, asked of some processes.

    Raises:
        HarnessError: the process that was asked died or hung.
    """
    vector = ask_implementation(pools, SOURCE_TASK, reference, answer=Source, time_limit=120.0)
    if not vector.ok:
        raise HarnessError(f"reading the adapter's source failed:\n{vector.describe()}")
    found: Source = vector.values[0]
    return found
