"""Pools of ranks on this machine, for one environment variant."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pipeconform.campaign.preload import PRELOAD
from pipeconform.judged_on import JudgedOn
from pipeconform.ranks.debugger import VARIABLE
from pipeconform.ranks.devices import Devices, backend_for
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.leased import leases_of
from pipeconform.ranks.pools import Pools

__all__ = ["pools_here", "set_up"]


def set_up(environment: Environment | None, devices: Devices) -> Environment:
    """The environment with what devices need and adapters may ask; the variant's own variables take precedence."""
    one = Environment() if environment is None else environment
    device_type = devices.device_type
    place = JudgedOn(device_type=device_type, backend=backend_for(devices.backend, device_type))
    settings = devices.settings(os.environ) | place.told_in(os.environ)
    return Environment(one.name, {**settings, **one.variables})


def pools_here(
    environment: Environment | None,
    devices: Devices,
    *,
    preload: Sequence[str] = PRELOAD,
    shows_output: bool = False,
    debugger: str = "",
) -> Pools:
    """Pools of ranks on this machine, with leases on its devices, which other runs may share.

    With `shows_output`, what ranks print is shown while they print it; `debugger` is as in `Options`.

    Raises:
        PoolError: the fork server cannot be started.
    """
    environment = set_up(environment, devices)
    if debugger:
        environment = Environment(environment.name, {**environment.variables, VARIABLE: debugger})
    return Pools(
        environment, preload=preload, devices=devices, leases=leases_of(devices), shows_output=shows_output
    )
