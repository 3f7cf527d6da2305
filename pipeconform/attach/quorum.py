"""How many agents a run needs, and how long it waits for lost ones to come back."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeconform.attach.hub import Hub
from pipeconform.attach.placement import reason_against
from pipeconform.errors import TooFewAgentsError

__all__ = ["Quorum"]


class Quorum:
    """At least `least` agents, waited for `patience` seconds when some are lost.

    Launchers restart all agents of a job when one ends. A run therefore waits for as many as there were, and goes
    on with fewer only if they do not come.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        least: int,
        patience: float,
        device_type: str,
        ranks_per_device: int,
        say: Callable[[str], None],
    ) -> None:
        self._hub, self._least, self._patience, self._say = hub, least, patience, say
        self._device_type, self._ranks_per_device = device_type, ranks_per_device
        self._expected = least

    @property
    def complete(self) -> bool:
        """Whether all expected agents are there."""
        return len(self._hub.agents) >= self._expected

    def gather(self, *, limit: float) -> None:
        """Wait up to `limit` seconds for the least number at the beginning of a run.

        Raises:
            TooFewAgentsError: fewer have come.
        """
        deadline = time.monotonic() + limit
        while len(self._hub.agents) < self._least and time.monotonic() < deadline:
            self._hub.step(0.2)
        self._require(limit)
        self._expected = len(self._hub.agents)

    def wait(self, size: int) -> None:
        """Return when as many agents are there as before, or, after `patience`, at least the minimum.

        Raises:
            TooFewAgentsError: fewer than that, or too few for `size` ranks.
        """
        self._hub.step(0.0)
        self._expected = max(self._expected, len(self._hub.agents))
        if not self.complete:
            missing = self._expected - len(self._hub.agents)
            self._say(f"waits up to {self._patience:g} s for {missing} agent(s) to re-join")
            deadline = time.monotonic() + self._patience
            while not self.complete and time.monotonic() < deadline:
                self._hub.step(0.2)
            self._require(self._patience)
            if not self.complete:
                self._say(f"goes on with {len(self._hub.agents)} of {self._expected} agents")
            self._expected = len(self._hub.agents)
        reason = self.reason_against(size)
        if reason is not None:
            raise TooFewAgentsError(reason)

    def reason_against(self, size: int) -> str | None:
        """Why `size` ranks cannot be placed on the attached agents; None if they can."""
        return reason_against(
            size,
            agents=len(self._hub.agents),
            device_type=self._device_type,
            ranks_per_device=self._ranks_per_device,
        )

    def _require(self, seconds: float) -> None:
        there = len(self._hub.agents)
        if there < self._least:
            raise TooFewAgentsError(
                f"{there} agent(s) attached at {self._hub.address} after waiting {seconds:g} s, the run needs "
                f"{self._least}: start more, or lower --min-agents"
            )
