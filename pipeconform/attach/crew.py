"""In the controller: the ranks of one pool on the attached agents, through their generations."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pipeconform.attach.attached import Attached, RemoteGroup, RemoteRank
from pipeconform.attach.greeting import printable
from pipeconform.attach.hub import Hub
from pipeconform.attach.messages import Ask, Kill, Prepare, Told
from pipeconform.attach.placement import placed
from pipeconform.attach.quorum import Quorum
from pipeconform.errors import PoolError
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.standing import Standing

__all__ = ["RemoteCrew", "Setting", "pulse_for"]

_ASKED = 3.0  # seconds for the answers of ranks, both ways included
_ECHO = 1.0  # seconds between a failure and the report of the loss that caused it
_PULSES = 5000  # per second that a controller can read with a part of its time
_FASTEST = 0.1  # seconds between two pulses of one agent
_STALE = 10  # missed pulses after which the last one says nothing about a rank any more
_SAID = 4096  # characters of a failure quoted in messages


def pulse_for(agents: int) -> float:
    """Seconds between two pulses of each of `agents`, so that the controller can read all of them."""
    return max(_FASTEST, agents / _PULSES)


@dataclass(frozen=True)
class Setting:
    """What all ranks of one environment variant have in common; `number` identifies it to the agents."""

    number: int
    environment: Environment
    preload: tuple[str, ...]
    device_type: str
    backend: str | None

    def prepare(self, agent: Attached) -> None:
        """Have an agent start the fork server, once."""
        if self.number not in agent.prepared:
            agent.prepared.add(self.number)
            agent.send(
                Prepare(
                    environment=self.number,
                    name=self.environment.name,
                    variables=dict(self.environment.variables),
                    preload=self.preload,
                )
            )


class RemoteCrew:
    """Keeps `size` ranks on the agents of `hub`; `formation_limit` is seconds."""

    def __init__(
        self, hub: Hub, quorum: Quorum, setting: Setting, *, size: int, formation_limit: float
    ) -> None:
        self._hub, self._quorum, self._setting = hub, quorum, setting
        self._size, self._formation_limit = size, formation_limit
        self._group: RemoteGroup | None = None
        self._formed = False
        self._tickets = 0
        self._outputs: dict[int, str] = {}
        self.seen: dict[int, dict[str, str | None]] = {}

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def group(self) -> RemoteGroup:
        """The present generation."""
        assert self._group is not None, "a crew is formed before it is asked for"
        return self._group

    def form(self) -> None:
        """Start a generation unless there is a whole one or too few agents are there; never waits."""
        self._hub.step(0.0)
        if self._group is not None:
            if not self._group.exits and all(one.agent.alive for one in self._group.channels):
                return
            self.discard()
        if self._quorum.complete:
            self._fork()

    def _fork(self) -> None:
        agents = self._hub.agents
        group = self._group = RemoteGroup(pulse_for(len(agents)))
        ranks: list[RemoteRank] = []
        identities, load = [agent.identity for agent in agents], [agent.load for agent in agents]
        for rank, index in enumerate(placed(identities, self._size, load=load)):
            self._setting.prepare(agents[index])
            ranks.append(
                agents[index].fork(
                    group,
                    rank,
                    world_size=self._size,
                    environment=self._setting.number,
                    device_type=self._setting.device_type,
                    backend=self._setting.backend,
                )
            )
        group.channels = tuple(ranks)

    def wait_until_formed(self) -> None:
        """Wait until every rank is set up; if there are too few agents, wait for them first.

        Raises:
            TooFewAgentsError: fewer than the minimum, and none came in time.
            PoolError: a rank could not be set up, or took too long; its output is quoted, with its host.
            VariantError: a rank does not see the environment's variables as they should be.
        """
        while not (self._formed and self._group is not None):
            self._quorum.wait(self._size)
            self.form()
            if self._group is not None and self._set_up():
                self._formed = True

    def _set_up(self) -> bool:
        """Whether all ranks were set up; False if an agent was lost meanwhile and others must be found.

        Raises:
            PoolError: as above.
        """
        group = self.group
        deadline = time.monotonic() + self._formation_limit
        while not group.ready:
            failed = self._failed(group)
            if failed:
                self._settle(group)
                if any(one.lost for one in group.exits.values()):
                    self.discard()
                    return False
                raise PoolError(failed)
            if time.monotonic() > deadline:
                silent = [f"{one.rank} on {one.agent.identity}" for one in group.channels if one.seen is None]
                raise PoolError(
                    f"not ready within {self._formation_limit:g} s: rank {', rank '.join(silent)}; "
                    f"can these hosts reach one another?"
                )
            self._hub.step(0.1)
        self.seen = {one.rank: one.seen or {} for one in group.channels}
        for rank, seen in self.seen.items():
            self._setting.environment.check(seen, rank=rank)
        return True

    @staticmethod
    def _failed(group: RemoteGroup) -> str:
        """The message of a rank that could not be set up; empty while all is well."""
        for rank in sorted({*group.unfit, *group.exits}):
            one = group.channels[rank]
            where = f"rank {rank} on {one.agent.identity}"
            if rank in group.unfit:
                return f"{where} could not be set up:\n{group.unfit[rank][-_SAID:]}"
            code = group.exits[rank].code
            return f"{where} ended with {code} while it was being set up; it printed:\n{one.printed}"
        return ""

    def _settle(self, group: RemoteGroup) -> None:
        """Wait a moment: a rank whose peer's host is gone may fail before the loss of that host is known."""
        deadline = time.monotonic() + _ECHO
        while time.monotonic() < deadline and not any(one.lost for one in group.exits.values()):
            self._hub.step(0.1)

    def discard(self, *, wait: bool = False) -> None:
        """Have the present generation killed, if any; agents do this before they fork the next one."""
        group, self._group, self._formed = self._group, None, False
        self.seen, self._outputs = {}, {}
        if group is None:
            return
        group.discarded = True
        for one in group.channels:
            if one.agent.alive:
                one.agent.send(Kill(member=one.number))
            one.agent.forget(one)

    def rest(self) -> None:
        """Do nothing: agents keep their ranks running."""

    def wake(self) -> None:
        """Do nothing."""

    def hand(self, rank: int, *, number: int, name: str, payload: bytes) -> None:
        """Send a task to `rank`."""
        self._outputs = {}
        self.group.channels[rank].hand(number=number, name=name, payload=payload)

    def step(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for something to happen, and record it."""
        self._hub.step(timeout)

    def require_alive(self) -> None:
        """Raise PoolError if the controller has sent its agents home."""
        if self._hub.closed:
            raise PoolError("the agents were sent home")

    def eyes(self) -> RemoteEyes:
        """Look at the present generation through its agents."""
        return RemoteEyes(self.group)

    def printed(self, rank: int) -> str:
        """The end of what `rank` printed, if the agent reported it: when asked for stacks, or at the rank's end."""
        return self._outputs.get(rank, "") or self.group.channels[rank].printed

    def show_output(self, *, last: bool = False) -> None:
        """Does nothing: ranks print on their agents' hosts, and `--show-output` is refused."""

    def trim_output(self, ranks: Sequence[int]) -> None:
        """Does nothing: agents limit the output."""

    def in_debugger(self) -> None:
        """No rank on another host opens a debugger: `--pdb` is refused."""

    def ask(self, ranks: Sequence[int]) -> Inquiry:
        """Ask `ranks` what they are doing."""
        return self._inquiry(ranks, stacks=False)

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Their Python stacks; the answers also bring their output."""
        asked = self._inquiry(ranks, stacks=True)
        asked.settle()
        found = asked.replies()
        self._outputs = {rank: word.output for rank, word in found.items()}
        return {rank: word.body.decode(errors="replace") for rank, word in found.items()}

    def _inquiry(self, ranks: Sequence[int], *, stacks: bool) -> Inquiry:
        self._tickets += 1
        return Inquiry(self._hub, self.group, ranks, ticket=self._tickets, stacks=stacks)


class RemoteEyes:
    """Sees what agents report about their ranks; a rank without reports counts as computing."""

    def __init__(self, group: RemoteGroup) -> None:
        self._group = group
        self._counts: dict[int, int] = {}

    def progress(self, ranks: Sequence[int]) -> bool:
        """Whether any of `ranks` progressed since the last call, or cannot be seen."""
        moved = [
            self._moved(self._group.channels[rank]) for rank in ranks
        ]  # of all: every look is compared with the last
        return any(moved)

    def _moved(self, one: RemoteRank) -> bool:
        if one.pulse is None or time.monotonic() - one.pulsed > _STALE * self._group.pulse:
            return True
        before = self._counts.get(one.rank)
        self._counts[one.rank] = one.pulse.progressed
        return before is None or before != one.pulse.progressed

    def stopped(self, rank: int) -> bool:
        """Whether a signal held `rank` at the last report."""
        pulse = self._group.channels[rank].pulse
        return pulse is not None and pulse.stopped

    def withheld(self, ranks: Sequence[int]) -> float:
        """0: agents do not report it, so limits on other hosts are by the clock."""
        return 0.0


class Inquiry:
    """A question to some ranks; those whose agents are lost never answer."""

    def __init__(
        self, hub: Hub, group: RemoteGroup, ranks: Sequence[int], *, ticket: int, stacks: bool
    ) -> None:
        self._hub, self._ticket = hub, ticket
        self._asked = [group.channels[rank] for rank in ranks if group.channels[rank].exited is None]
        self._until = time.monotonic() + _ASKED
        for one in self._asked:
            one.agent.send(Ask(member=one.number, ticket=ticket, stacks=stacks))

    def replies(self) -> dict[int, Told]:
        """By rank, the answer so far."""
        return {one.rank: one.replies[self._ticket] for one in self._asked if self._ticket in one.replies}

    def answers(self) -> dict[int, Standing]:
        """The standings so far, on the controller's clock."""
        began = {one.rank: one.began for one in self._asked}
        return {
            rank: _standing(word.body).shifted(began[rank])
            for rank, word in self.replies().items()
            if word.body
        }

    def wait(self) -> dict[int, Standing]:
        """The standings when no more are expected."""
        self.settle()
        return self.answers()

    def settle(self) -> None:
        """Wait until no more answers are expected."""
        while not self.over:
            self._hub.step(0.05)

    @property
    def over(self) -> bool:
        """Whether all that still can have answered, or the time is over."""
        waits = any(one.exited is None and self._ticket not in one.replies for one in self._asked)
        return not waits or time.monotonic() > self._until


@functools.lru_cache(maxsize=64)
def _standing(body: bytes) -> Standing:
    try:
        return msgspec.json.decode(body, type=Standing)
    except msgspec.MsgspecError as error:
        return Standing(doing=f"(its agent's word of it cannot be read: {printable(str(error))})")
