"""Pools by world size over one fork server, and one spare process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from pipeconform.errors import PoolError
from pipeconform.ranks.crew import Crew
from pipeconform.ranks.devices import Devices
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.forkserver import PRELOAD, ForkServer
from pipeconform.ranks.leased import Leased, Leasing
from pipeconform.ranks.leases import Leases
from pipeconform.ranks.output_stream import OutputStream
from pipeconform.ranks.pool import Pool
from pipeconform.ranks.prestart import server_of
from pipeconform.ranks.protocols import CasePool

__all__ = ["Pools", "WarmPools"]

_CPU = Devices(device_type="cpu", backend="gloo", count=None)


class WarmPools:
    """Keeps pools for the next task, at most `most` at a time; the least recently used is closed for another.

    The spare pool is not counted. Processes of pools other than the last one requested are stopped.
    """

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"max_sizes is at least 1, not {most}")
        self._most = most
        self._pools: OrderedDict[Hashable, Pool] = OrderedDict()
        self._spare: Pool | None = None
        self._closed = False

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys of the pools that are kept, least recently used first."""
        return tuple(self._pools)

    def require_open(self) -> None:
        """Raise PoolError after `close`."""
        if self._closed:
            raise PoolError("the pools are closed")

    def get(self, key: Hashable, make: Callable[[], Pool]) -> Pool:
        """The pool with that key, made if there is none."""
        self.require_open()
        if key not in self._pools:
            while len(self._pools) >= self._most:
                self._pools.popitem(last=False)[1].close()
            self._pools[key] = make()
        self._pools.move_to_end(key)
        for other in self._pools.values():
            if other is not self._pools[key]:
                other.rest()
        return self._pools[key]

    def spare(self, make: Callable[[], Pool]) -> Pool:
        """The pool beside the others, made if there is none."""
        self.require_open()
        if self._spare is None:
            self._spare = make()
        return self._spare

    def clear(self, *, wait: bool = False) -> None:
        """Close every pool; later requests make others. With `wait`, their processes are gone when this returns."""
        if self._spare is not None:
            self._spare.close(wait=wait)
            self._spare = None
        while self._pools:
            self._pools.popitem()[1].close(wait=wait)

    def close(self) -> None:
        """Close every pool and make no more; closing twice is harmless."""
        self._closed = True
        self.clear()


class Pools:
    """Pools made on demand and kept warm, at most ``max_sizes`` world sizes at a time (the oracle not counted).

    ``idle_limit`` is seconds; see ``pipeconform.ranks.watch.Limits``. With ``leases``, ranks use only devices that
    no other process has leased. With ``shows_output``, what ranks print is shown while they print it. If the fork
    server has ended, the next request starts another.

    Raises:
        PoolError: the fork server cannot be started.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        preload: Sequence[str] = PRELOAD,
        devices: Devices = _CPU,
        idle_limit: float = 2.0,
        max_sizes: int = 4,
        leases: Leases | None = None,
        shows_output: bool = False,
    ) -> None:
        self.environment = Environment() if environment is None else environment
        self.devices = devices
        self.idle_limit = idle_limit
        """Seconds; applies to the pools that are asked for from now on, older ones included."""
        self._preload = tuple(preload)
        self._shows_output = shows_output
        self._warm = WarmPools(max_sizes)
        """By the device of every rank."""
        self._leasing = None if leases is None else Leasing(leases, devices, self.on_devices)
        self._server = self._start()

    def __enter__(self) -> Pools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def server(self) -> ForkServer:
        """The fork server that all pools share; a new one if the last has ended."""
        self._warm.require_open()
        if not self._server.alive:
            self._warm.clear()
            self._server.close()
            self._server = self._start()
        return self._server

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that ranks run on, other than this machine: none."""
        return ()

    @property
    def oracle(self) -> Pool:
        """One process like a rank (threads, environment, device), without a process group.

        It leases no device: it shares the last one, which the fewest ranks use, with the process that has leased it.
        """
        server = self.server

        def make() -> Pool:
            crew = Crew(server, size=1, backend=None, devices=(self.devices.last,))
            return Pool(crew, idle_limit=self.idle_limit)

        return self._warm.spare(make)

    def of_size(self, world_size: int) -> CasePool:
        """Return the pool of ``world_size`` ranks; with too many pools, the least recently used is closed.

        Do not keep a pool over requests for other sizes: it may be closed.

        Raises:
            PoolError: there are too few devices (see ``Devices.reason_against``), or no process can be started.
        """
        if self._leasing is None:
            return self.on_devices(world_size, self.devices)
        _require(self.devices, world_size)
        return Leased(self._leasing, world_size)

    def on_devices(self, world_size: int, devices: Devices) -> Pool:
        """Like `of_size`, on devices that may differ from the pools' own."""
        server = self.server
        _require(devices, world_size)
        assigned = devices.assignment(world_size)

        def make() -> Pool:
            stream = OutputStream() if self._shows_output else None
            crew = Crew(server, size=world_size, backend=devices.backend, devices=assigned, stream=stream)
            return Pool(crew)

        pool = self._warm.get(assigned, make)
        pool.idle_limit = self.idle_limit
        return pool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The world sizes alive, least recently used first."""
        return tuple(len(key) for key in self._warm.keys if isinstance(key, tuple))

    def clear(self) -> None:
        """End every rank and the oracle, and wait until they are gone; the next task starts others."""
        self._warm.clear(wait=True)

    def close(self) -> None:
        """End every process; closing twice is harmless."""
        self._warm.close()
        self._server.close()

    def _start(self) -> ForkServer:
        return server_of(self.environment, preload=self._preload)


def _require(devices: Devices, world_size: int) -> None:
    reason = devices.reason_against(world_size)
    if reason is not None:
        raise PoolError(reason)
