"""Pools by world size over the attached agents, and the oracle's process on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeconform.attach.crew import RemoteCrew, Setting, pulse_for
from pipeconform.attach.greeting import Identity, printable
from pipeconform.attach.hub import Hub
from pipeconform.attach.quorum import Quorum
from pipeconform.ranks.devices import Devices
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.pool import Pool
from pipeconform.ranks.pools import Pools, WarmPools
from pipeconform.ranks.verdict import VerdictVector

__all__ = ["AttachedPools", "Controller"]

_LEAST_IDLE = 5.0  # seconds: TCP sends a lost packet again in less
_IDLE_AFTER_FAILURE = 1.0  # seconds: time for several pulses of every agent, and for messages on their way
_IDLE_PULSES = 4  # of every rank, before missing progress is called a hang
_ASKED_AGAIN = 2  # launchers restart all agents when one ends, so one loss may show as two
_FORMATION_LIMIT = 180.0  # seconds; a fork server may import torch over a network


class Controller:
    """What all pools of a run share: agents, how many are needed, and the numbers of environments."""

    def __init__(
        self,
        hub: Hub,
        *,
        least: int,
        patience: float,
        devices: Devices,
        say: Callable[[str], None],
    ) -> None:
        self.hub, self.devices, self.say = hub, devices, say
        self.quorum = Quorum(
            hub,
            least=least,
            patience=patience,
            device_type=devices.device_type,
            ranks_per_device=devices.ranks_per_device,
            say=say,
        )
        self.least_idle = _LEAST_IDLE
        """The least number of seconds without progress that pools call a hang."""
        self._environments: list[tuple[Environment, tuple[str, ...]]] = []
        """What the agents' fork servers are started with; the place in this list identifies a server to them."""

    def gather(self, *, limit: float) -> None:
        """Wait for the first agents.

        Raises:
            TooFewAgentsError: not enough agents came within `limit` seconds.
        """
        self.quorum.gather(limit=limit)

    def pools(
        self,
        environment: Environment | None = None,
        *,
        preload: Sequence[str],
        idle_limit: float = 2.0,
        max_sizes: int = 4,
    ) -> AttachedPools:
        """Make pools under one environment variant; those that ask for the same share the agents' fork servers."""
        asked = (Environment() if environment is None else environment, tuple(preload))
        if asked not in self._environments:
            self._environments.append(asked)
        return AttachedPools(
            self,
            number=self._environments.index(asked),
            environment=asked[0],
            preload=asked[1],
            idle_limit=idle_limit,
            max_sizes=max_sizes,
        )


class AttachedPools:
    """Pools made on demand and kept warm, at most `max_sizes` world sizes at a time; made by `Controller.pools`."""

    def __init__(
        self,
        controller: Controller,
        *,
        number: int,
        environment: Environment,
        preload: tuple[str, ...],
        idle_limit: float,
        max_sizes: int,
    ) -> None:
        self.environment = environment
        self.devices = controller.devices
        self.idle_limit = idle_limit
        """Seconds; applies to pools made from now on."""
        self._controller = controller
        self._setting = Setting(
            number=number,
            environment=environment,
            preload=preload,
            device_type=self.devices.device_type,
            backend=self.devices.backend,
        )
        self._local = Pools(environment, preload=preload)
        self._warm = WarmPools(max_sizes)
        for agent in controller.hub.agents:
            self._setting.prepare(agent)

    def __enter__(self) -> AttachedPools:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the agents that are attached now."""
        agents = self._controller.hub.agents
        return tuple(sorted({f"attached {printable(agent.identity.host)}" for agent in agents}))

    @property
    def oracle(self) -> Pool:
        """One process of this machine; if ranks are not on its CPU, one on their devices.

        Its kernels must be the ranks' own, or numbers could not be compared.
        """
        if self.devices.device_type == "cpu":
            return self._local.oracle
        return self._warm.spare(lambda: self.bare(1, backend=None))

    def of_size(self, world_size: int) -> Steadfast:
        """The pool of `world_size` ranks; with too many pools, the least recently used is closed.

        Raises:
            TooFewAgentsError: there are too few agents, even after waiting for lost ones.
            PoolError: the pools are closed, or ranks cannot be formed.
        """
        pool = self._warm.get(world_size, lambda: self.bare(world_size))
        return Steadfast(pool, self._controller.say)

    def everywhere(
        self, task: str, payload: bytes, *, time_limit: float
    ) -> tuple[VerdictVector, tuple[Identity, ...]]:
        """Run a task on every agent, without a process group; return the verdicts and the agents they belong to.

        A task in which an agent was lost is run again, at most twice, when lost agents have come back.

        Raises:
            PoolError: as for `of_size`.
        """
        found = self._asked_everywhere(task, payload, time_limit=time_limit)
        for _ in range(_ASKED_AGAIN):
            if not found[0].lost:
                break
            self._controller.say(f"all agents are asked once more; lost {found[0].lost}")
            self._controller.quorum.wait(1)
            found = self._asked_everywhere(task, payload, time_limit=time_limit)
        return found

    def _asked_everywhere(
        self, task: str, payload: bytes, *, time_limit: float
    ) -> tuple[VerdictVector, tuple[Identity, ...]]:
        crew = self._crew(len(self._controller.hub.agents), backend=None)
        pool = self._over(crew)
        try:
            pool.wait_until_formed()
            identities = tuple(one.agent.identity for one in crew.group.channels)
            vector = pool.run(task, payload, time_limit=time_limit)
        finally:
            pool.close()
        return vector, identities

    def bare(self, world_size: int, *, backend: str | None = "") -> Pool:
        """A separate pool, whose verdicts report lost hosts at once; the caller closes it.

        `backend` None is for ranks without a process group, the empty string for the devices' own.
        """
        return self._over(self._crew(world_size, backend=backend))

    def _crew(self, world_size: int, *, backend: str | None) -> RemoteCrew:
        controller = self._controller
        setting = self._setting if backend == "" else replace(self._setting, backend=backend)
        return RemoteCrew(
            controller.hub,
            controller.quorum,
            setting,
            size=world_size,
            formation_limit=_FORMATION_LIMIT,
        )

    def _over(self, crew: RemoteCrew) -> Pool:
        pulses = _IDLE_PULSES * pulse_for(len(self._controller.hub.agents))
        idle_limit = max(self.idle_limit, self._controller.least_idle, pulses)
        return Pool(crew, idle_limit=idle_limit, idle_limit_after_failure=max(_IDLE_AFTER_FAILURE, pulses))

    def clear(self) -> None:
        """End every rank and the oracle, and wait until they are gone; the next task starts others."""
        self._local.clear()
        self._warm.clear(wait=True)

    def close(self) -> None:
        """End every rank and the oracle; the agents stay. Closing twice is harmless."""
        self._warm.close()
        self._local.close()


class Steadfast:
    """A pool that runs a task once more if a host was lost in it, because that says nothing about the task.

    The second verdicts stay, even if a host was lost again: the task may be what takes hosts down.
    """

    def __init__(self, pool: Pool, say: Callable[[str], None]) -> None:
        self._pool, self._say = pool, say

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
            TooFewAgentsError: hosts were lost, and not enough are left.
            PoolError: ranks cannot be formed.
        """

        def attempt() -> VerdictVector:
            return self._pool.run(task, payloads, time_limit=time_limit, failure_expected=failure_expected)

        vector = attempt()
        if vector.lost:
            self._say(f"the case that ran is executed once more; it lost {vector.lost}")
            vector = attempt()
        return vector

    def restart(self) -> None:
        """Replace all rank processes by new ones."""
        self._pool.restart()
