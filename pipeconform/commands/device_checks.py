"""What a device and its backend can do, for `pipeconform doctor --device`: each trial in a task of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pipeconform.commands.checks import Check
from pipeconform.errors import PipeconformError
from pipeconform.plural import plural
from pipeconform.ranks.devices import Devices, resolve
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.leased import leases_of
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.trials import TASK, TRIALS
from pipeconform.ranks.verdict import Raised, Returned, VerdictVector

__all__ = ["on_device"]

_MOST_RANKS = 2
_TIME_LIMIT = 60.0  # seconds for one trial
# what a run can do without, and what it then lacks
_DISPENSABLE = {
    "modules": "place stages with plan.build_owned(), or with placed from pipeconform.adapter, which keep both",
    "determinism": "LIF-5 shows such operators, and other requirements may be flaky",
    "float64": "only adapters that claim smaller dtypes can be judged on it",
    "abort": "an error in one case may be reported as a rank that is stuck",
    "generator": "LIF-1 and LIF-6 cannot see what an implementation draws on the device",
}


def on_device(device: str, *, backend: str, ranks_per_device: int) -> Iterator[Check]:
    """The checks of a device; none for the CPU."""
    if device == "cpu":
        return
    try:
        devices = resolve(device, backend=backend, ranks_per_device=ranks_per_device)
    except PipeconformError as error:
        yield Check(name="device", state="FAIL", text=str(error))
        return
    yield from _tried(devices)


def _tried(devices: Devices) -> Iterator[Check]:
    ranks = next((n for n in range(_MOST_RANKS, 0, -1) if devices.reason_against(n) is None), 0)
    if not ranks:
        yield Check(name="device", state="FAIL", text=f"{devices.reason_against(1)}")
        return
    environment = Environment(variables=devices.settings(os.environ))
    with Pools(environment, devices=devices, leases=leases_of(devices)) as pools:
        for number, name in enumerate(TRIALS):
            try:
                vector = pools.of_size(ranks).run(TASK, name.encode(), time_limit=_TIME_LIMIT)
            except PipeconformError as error:  # the device and the backend do not work together
                yield Check(name="connection", state="FAIL", text=_line(str(error)))
                return
            if not number:
                kinds = (
                    ", ".join(dict.fromkeys(devices.names[: devices.needed(ranks)])) or devices.device_type
                )
                text = f"{plural(ranks, 'rank')}, {kinds}"
                yield Check(
                    name="connection", state="ok", text=f"{text}, {devices.backend}: a sum and a ring"
                )
            yield _check(name, vector)


def _check(name: str, vector: VerdictVector) -> Check:
    first = vector[0]
    if vector.ok and isinstance(first, Returned):
        return Check(name=name, state="ok", text=str(first.value, "utf-8"))
    raised = next((f"{one.type}: {one.message}" for one in vector if isinstance(one, Raised)), "")
    text = _line(raised or vector.describe())
    remedy = _DISPENSABLE.get(name, "")
    return Check(name=name, state="warn" if remedy else "FAIL", text=text, remedy=remedy)


def _line(text: str) -> str:
    return " ".join(text.split())[:240]
