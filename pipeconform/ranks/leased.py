"""Pools whose ranks lease devices from the host for each task: several processes share a machine's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeconform.ranks.devices import Devices, device_names
from pipeconform.ranks.leases import Leases
from pipeconform.ranks.pool import Pool
from pipeconform.ranks.verdict import VerdictVector

__all__ = ["Leased", "Leasing", "leases_of"]

_PATIENCE = 900.0  # seconds; another process holds devices for one case at a time, and cases end


def leases_of(devices: Devices) -> Leases | None:
    """The leases on this host's devices; None for uncounted devices such as the CPU."""
    if devices.count is None:
        return None
    return Leases(devices.device_type, device_names(devices.device_type, devices.count))


class Leasing:
    """The devices leased for a task.

    A world asks first for the devices that it had before, where its ranks are warm, then for those that the fewest
    other worlds have had: each process that has used a device keeps memory there.
    """

    def __init__(self, leases: Leases, devices: Devices, pool_on: Callable[[int, Devices], Pool]) -> None:
        self._leases, self._devices, self._pool_on = leases, devices, pool_on
        self.patience = _PATIENCE
        """Seconds to wait for devices."""
        self._had: dict[int, tuple[int, ...]] = {}
        """By world size."""
        self._stale: set[int] = set()

    def run(
        self,
        world_size: int,
        task: str,
        payloads: bytes | Sequence[bytes],
        *,
        time_limit: float,
        failure_expected: bool,
    ) -> VerdictVector:
        """Run a task on leased devices; waiting for them is not part of its time."""
        number = self._devices.needed(world_size)
        with self._leases.take(number, patience=self.patience, prefer=self._preferred(world_size)) as lease:
            self._had[world_size] = lease.indices
            pool = self._pool_on(world_size, replace(self._devices, indices=lease.indices))
            if world_size in self._stale:
                self._stale.discard(world_size)
                pool.restart()
            return pool.run(task, payloads, time_limit=time_limit, failure_expected=failure_expected)

    def _preferred(self, world_size: int) -> tuple[int, ...]:
        others = Counter(index for size, had in self._had.items() if size != world_size for index in had)
        fewest = sorted(range(len(self._leases.names)), key=lambda index: others[index])
        return (*self._had.get(world_size, ()), *fewest)

    def restart(self, world_size: int) -> None:
        """Use new processes for the next task of so many ranks, whichever devices it leases."""
        self._stale.add(world_size)


class Leased:
    """The pool of one world size, which leases its devices for each task."""

    def __init__(self, leasing: Leasing, size: int) -> None:
        self._leasing, self._size = leasing, size

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
        return self._leasing.run(
            self._size, task, payloads, time_limit=time_limit, failure_expected=failure_expected
        )

    def restart(self) -> None:
        """Replace all rank processes with new ones."""
        self._leasing.restart(self._size)
