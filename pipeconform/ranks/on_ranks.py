"""Calls any function on every rank of a warm process group: the runner as a tool for other projects' tests.

::

    from pipeconform import run_on_ranks

    def summed(start):
        value = torch.tensor([start + dist.get_rank()])
        dist.all_reduce(value)
        return value.item()

    assert run_on_ranks(summed, 10, ranks=4).values == (46, 46, 46, 46)

The function is sent by value (cloudpickle), so closures, lambdas and functions of test modules that no
other process could import work. Ranks stay warm between calls: what a function leaves behind in its
process (a seed, a patched module) is there for the next one. A function must destroy the groups that it makes.
"""

from __future__ import annotations

import atexit
import functools
import io
import marshal
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType
from typing import ClassVar

import cloudpickle
import msgspec

from pipeconform.errors import UsageError
from pipeconform.ranks.devices import Devices, resolve
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.leased import leases_of
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.verdict import Returned, VerdictVector

__all__ = ["run_on_ranks"]

_TASK = f"{__name__}:call"
_WARM: dict[object, Pools] = {}


def run_on_ranks(
    function: Callable[..., object],
    *args: object,
    ranks: int,
    time_limit: float = 60.0,
    idle_limit: float = 2.0,
    record: bool = False,
    device: str = "cpu",
    backend: str = "auto",
    ranks_per_device: int = 1,
    environment: Mapping[str, str | None] | None = None,
    **kwargs: object,
) -> VerdictVector:
    """Call ``function(*args, **kwargs)`` on every one of ``ranks`` processes; return one verdict per rank.

    The default process group is set up, and ranks have one intra-op thread. ``time_limit`` is seconds for
    the whole call, not counting (on Linux) time in which other processes had the processors; if no rank uses its
    processor for ``idle_limit`` seconds, the ranks are stuck.
    With ``record`` every communication is recorded (some 40 µs each, and what is never waited for stays alive
    until the function returns): a hang then names the operation of every rank, and a deadlock is proved within
    half a second.
    ``ranks_per_device`` neighbours share a device (NCCL: from release 2.30 on).
    ``environment`` holds variables that the ranks see (None removes one); every different set has processes
    of its own. ``vector.values`` are the results in rank order; if a rank did not return, it raises an error with
    every rank's verdict.

    Raises:
        UsageError: the function or an argument cannot be pickled.
        PoolError: processes cannot be started, or there are too few devices.
    """
    payload = bytes([record]) + _dumps(function, args, kwargs)
    devices = resolve(device=device, backend=backend, ranks_per_device=ranks_per_device)
    variables = {**devices.settings(os.environ), **dict(environment or {})}
    pools = _pools(Environment(variables=variables), devices)
    pools.idle_limit = idle_limit
    pool = pools.of_size(ranks)
    return VerdictVector(
        tuple(
            msgspec.structs.replace(verdict, value=pickle.loads(verdict.value))  # noqa: S301 - our own ranks
            if isinstance(verdict, Returned)
            else verdict
            for verdict in pool.run(_TASK, payload, time_limit=time_limit)
        )
    )


def call(_context: RankContext, payload: bytes) -> bytes:
    """On a rank: call the function in the payload."""
    record = bool(payload[0])
    function, args, kwargs = pickle.loads(memoryview(payload)[1:])  # noqa: S301 - our own controller wrote it
    with _recording() if record else nullcontext():
        value = function(*args, **kwargs)
    return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def _recording() -> AbstractContextManager[object]:
    from pipeconform.ranks.recording.recorder import Recorder  # brings torch, for the ranks only

    return Recorder().recording()


def _pools(environment: Environment, devices: Devices) -> Pools:
    key = tuple(sorted(environment.variables.items())), devices
    if key not in _WARM:
        if not _WARM:
            atexit.register(_close)
        _WARM[key] = Pools(environment, devices=devices, leases=leases_of(devices))
    return _WARM[key]


def _close() -> None:
    while _WARM:
        _WARM.popitem()[1].close()


def _dumps(function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
    if isinstance(function, functools.partial):  # so that its arguments are named if they cannot be pickled
        return _dumps(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    try:
        with _by_value(function):
            payload = io.BytesIO()
            _Pickler(payload).dump((function, args, kwargs))
            return payload.getvalue()
    except Exception as error:
        raise UsageError(
            f"{_culprit(function, args, kwargs)} cannot be sent to the ranks: {error}"
        ) from error


def _code(code: CodeType) -> tuple[Callable[[bytes], object], tuple[bytes]]:
    return marshal.loads, (marshal.dumps(code),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle, with the file of each function kept: from 3.1.3 on it writes <dynamic-code> instead.

    Tracebacks and stacks of ranks then show no source lines.
    """

    dispatch_table: ClassVar = ChainMap({CodeType: _code}, cloudpickle.Pickler.dispatch_table)


def _culprit(function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Name what cannot be pickled: an argument, or else the function with the globals it uses."""
    named = {**{f"argument {number}": value for number, value in enumerate(args)}, **kwargs}
    for name, value in named.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"{name} ({type(value).__name__})"
    return f"{getattr(function, '__qualname__', function)} (or a global that it uses)"


@contextmanager
def _by_value(function: Callable[..., object]) -> Iterator[None]:
    """Pickle a test module's functions by value: the ranks could not import it, or would import an older one."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
