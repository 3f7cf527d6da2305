"""Pools by world size over one fork server, and the oracle's process beside them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType

from pipeconform.errors import PoolError
from pipeconform.ranks.devices import Devices
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.forkserver import PRELOAD, ForkServer
from pipeconform.ranks.pool import Pool
from pipeconform.ranks.prestart import server_of

__all__ = ["Pools"]

_CPU = Devices(device_type="cpu", backend="gloo", count=None)


class Pools:
    """Pools made on demand and kept warm, at most ``max_sizes`` world sizes at a time (the oracle apart).

    ``idle_limit`` is seconds; see ``pipeconform.ranks.watch.Limits``. If the fork server has ended, the next
    request starts another.

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
    ) -> None:
        if max_sizes < 1:
            raise ValueError(f"max_sizes is at least 1, not {max_sizes}")
        self.environment = Environment() if environment is None else environment
        self.devices = devices
        self._preload = tuple(preload)
        self.idle_limit = idle_limit
        """Seconds; pools made from now on have it."""
        self._max_sizes = max_sizes
        self._pools: OrderedDict[tuple[str, ...], Pool] = OrderedDict()
        """By the device of every rank."""
        self._oracle: Pool | None = None
        self._closed = False
        self._server = self._start()

    def __enter__(self) -> Pools:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def server(self) -> ForkServer:
        """The fork server that all pools share; a new one if the last has ended."""
        if self._closed:
            raise PoolError("the pools are closed")
        if not self._server.alive:
            self._close_all()
            self._server = self._start()
        return self._server

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where the ranks are, where that is not this machine: nowhere."""
        return ()

    @property
    def oracle(self) -> Pool:
        """One process like a rank (threads, environment, device), without a process group."""
        server = self.server
        if self._oracle is None:
            self._oracle = Pool(
                server,
                size=1,
                backend=None,
                devices=self.devices.assignment(1),
                idle_limit=self.idle_limit,
            )
        return self._oracle

    def of_size(self, world_size: int) -> Pool:
        """Return the pool of ``world_size`` ranks; the least recently used gives way when there are many.

        A pool that gave way is closed: do not keep one over requests for other sizes.

        Raises:
            PoolError: there are too few devices (see ``Devices.reason_against``), or no processes to be had.

        """
        return self.on_devices(world_size, self.devices)

    def on_devices(self, world_size: int, devices: Devices) -> Pool:
        """As `of_size`, on devices that may be others than the pools' own."""
        server = self.server
        reason = devices.reason_against(world_size)
        if reason is not None:
            raise PoolError(reason)
        assigned = devices.assignment(world_size)
        if assigned not in self._pools:
            while len(self._pools) >= self._max_sizes:
                self._pools.popitem(last=False)[1].close()
            self._pools[assigned] = Pool(
                server,
                size=world_size,
                backend=devices.backend,
                devices=assigned,
                idle_limit=self.idle_limit,
            )
        self._pools.move_to_end(assigned)
        return self._pools[assigned]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The world sizes alive, least recently used first."""
        return tuple(map(len, self._pools))

    def close(self) -> None:
        """End every process; closing twice is harmless."""
        self._closed = True
        self._close_all()

    def _start(self) -> ForkServer:
        return server_of(self.environment, preload=self._preload)

    def _close_all(self) -> None:
        if self._oracle is not None:
            self._oracle.close()
            self._oracle = None
        while self._pools:
            self._pools.popitem()[1].close()
        self._server.close()
