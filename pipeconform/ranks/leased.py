"""Pools on devices that are leased from the host for each task: several processes share a machine's devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from pipeconform.errors import PoolError
from pipeconform.ranks.devices import device_names
from pipeconform.ranks.leases import Leases
from pipeconform.ranks.pool import Pool
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import VerdictVector

__all__ = ["LeasedPools"]

_PATIENCE = 900.0  # seconds; others hold devices for a case at a time, which ends


class LeasedPools:
    """Pools by world size whose ranks use only devices that nobody else has leased meanwhile.

    Those that were used last are asked for first, and their ranks kept warm. The oracle is not counted: it uses one
    of the devices, whoever has leased it.
    """

    def __init__(self, pools: Pools, *, leases: Leases | None = None, patience: float = _PATIENCE) -> None:
        count = pools.devices.count
        if count is None:
            raise ValueError(f"{pools.devices.device_type} is not counted, so none of it can be leased")
        kind = pools.devices.device_type
        self._pools, self._patience = pools, patience
        self.environment, self.devices = pools.environment, pools.devices
        self._leases = Leases(kind, device_names(kind, count)) if leases is None else leases
        self._last: tuple[int, ...] = ()
        self._stale: set[int] = set()

    def __enter__(self) -> LeasedPools:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pools.close()

    @property
    def idle_limit(self) -> float:
        """Seconds; pools made from now on have it."""
        return self._pools.idle_limit

    @idle_limit.setter
    def idle_limit(self, seconds: float) -> None:
        self._pools.idle_limit = seconds

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where the ranks are, where that is not this machine: nowhere."""
        return self._pools.hosts

    @property
    def oracle(self) -> Pool:
        """One process like a rank, without a process group."""
        return self._pools.oracle

    def of_size(self, world_size: int) -> Leased:
        """The pool of `world_size` ranks, which leases its devices for each task.

        Raises:
            PoolError: this machine has too few devices.
        """
        reason = self.devices.reason_against(world_size)
        if reason is not None:
            raise PoolError(reason)
        return Leased(self, world_size)

    def run(
        self,
        world_size: int,
        task: str,
        payloads: bytes | Sequence[bytes],
        *,
        time_limit: float,
        failure_expected: bool,
    ) -> VerdictVector:
        """Run a task on leased devices; waiting for them is not part of its time.

        Raises:
            PoolError: they were not free in time, or ranks cannot be formed.
        """
        number = self.devices.needed(world_size)
        with self._leases.take(number, patience=self._patience, prefer=self._last) as lease:
            if not set(lease.indices) <= set(self._last):
                self._last = lease.indices
            pool = self._pools.on_devices(world_size, replace(self.devices, indices=lease.indices))
            if world_size in self._stale:
                self._stale.discard(world_size)
                pool.restart()
            return pool.run(task, payloads, time_limit=time_limit, failure_expected=failure_expected)

    def restart(self, world_size: int) -> None:
        """Have new processes for the next task of so many ranks, on whatever devices that will be."""
        self._stale.add(world_size)


class Leased:
    """The pool of one world size."""

    def __init__(self, pools: LeasedPools, size: int) -> None:
        self._pools, self._size = pools, size

    def run(
        self,
        task: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        time_limit: float,
        failure_expected: bool = False,
    ) -> VerdictVector:
        """One verdict per rank; see `pipeconform.ranks.pool.Pool.run`.

        Raises:
            PoolError: devices were not free in time, or ranks cannot be formed.
        """
        return self._pools.run(
            self._size, task, payloads, time_limit=time_limit, failure_expected=failure_expected
        )

    def restart(self) -> None:
        """Replace all rank processes by new ones."""
        self._pools.restart(self._size)
