"""In the controller: one connected agent, and the ranks that it has forked."""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol

import msgspec

from pipeconform.attach.greeting import Identity, printable
from pipeconform.attach.link import Link
from pipeconform.attach.messages import (
    Answer,
    Fork,
    Gone,
    Order,
    Pulse,
    Ready,
    Seen,
    Stacks,
    Standing,
    StoreAt,
    Task,
    Unfit,
    Word,
    encode,
    read_word,
)
from pipeconform.ranks.channel import Frame
from pipeconform.ranks.verdict import Raised
from pipeconform.ranks.wire import Exited, Kind

__all__ = ["Attached", "Generation", "RemoteRank"]

_LARGE = 1 << 14  # bytes of an incoming message that count as movement; pulses are smaller


class Generation(Protocol):
    """The ranks of one world. Each rank records what happened to it, so that no caller looks at all of them."""

    exits: dict[int, Exited]
    """By rank."""
    unfit: dict[int, str]
    """By rank why it could not be set up."""

    def meet(self, word: StoreAt) -> None:
        """Tell the other ranks where rank 0 waits for them."""


class RemoteRank:
    """The state of one rank on an agent, and what arrived from it."""

    def __init__(self, agent: Attached, number: int, *, rank: int, generation: Generation) -> None:
        self.agent, self.number, self.rank = agent, number, rank
        self._generation = generation
        self.frames: deque[Frame] = deque()
        self.ended, self.wrong = False, ""
        self.pid: int | None = None
        self.seen: dict[str, str | None] | None = None
        self.exited: Exited | None = None
        self.printed = ""
        self.began = 0.0
        """When its task was handed over, on the controller's clock."""
        self.busy = False
        self.pulse: Seen | None = None
        self.pulsed = 0.0
        self.replies: dict[int, Standing | Stacks] = {}
        """By ticket."""
        self._bytes = 0

    @property
    def receiving(self) -> bool:
        """Whether something large is coming from its agent: likely its answer."""
        return self.busy and self.agent.link.partial > _LARGE

    @property
    def moved(self) -> int:
        """Changes with the bytes of tasks and answers, but not with pulses."""
        link = self.agent.link
        partial = link.partial if link.partial > _LARGE else 0
        queued = link.queued if link.queued > _LARGE else 0
        return self._bytes + partial - queued

    def pull(self, *, everything: bool = False) -> None:
        """Does nothing: the hub delivers frames."""

    def hand(self, *, number: int, name: str, payload: bytes) -> None:
        """Send a task."""
        self.busy, self.pulse, self.pulsed = True, None, time.monotonic()
        self.printed = ""
        # before it is sent: the agent may start at once, and no end may seem to precede its start
        self.began = time.monotonic()
        self.agent.send(Task(member=self.number, number=number, name=name, payload=payload))

    def hear(self, word: Word) -> None:
        """Record a report of its agent."""
        match word:
            case StoreAt():
                self._generation.meet(word)
            case Ready(pid=pid, seen=seen):
                self.pid, self.seen = pid, seen
            case Unfit(reason=reason):
                self._generation.unfit[self.rank] = reason
            case Answer():
                self._answered(word)
            case Gone(code=code, after=after, output=output, lost=lost):
                self.printed = output
                why = f"{self.agent.identity}: {printable(lost)}" if lost else ""
                self._ended(code, self.began + after, lost=why)
            case Standing() | Stacks():
                self.replies[word.ticket] = word

    def _answered(self, word: Answer) -> None:
        if word.kind == "raised":
            msgspec.msgpack.decode(
                word.body, type=Raised
            )  # an unreadable answer is the agent's fault, not the controller's
        self.busy = False
        self._bytes += len(word.body)
        kind = Kind.BYTES if word.kind == "returned" else Kind.RAISED
        self.frames.append(
            Frame(number=word.number, moment=self.began + word.after, kind=kind, body=word.body)
        )

    def _ended(self, code: int, moment: float, *, lost: str = "") -> None:
        if self.exited is None:
            self.busy = False
            self.exited = Exited(group=0, rank=self.rank, code=code, moment=moment, lost=lost)
            self._generation.exits[self.rank] = self.exited

    def lose(self, why: str) -> None:
        """Record that its agent is out of reach."""
        self._ended(0, time.monotonic(), lost=why)


class Attached:
    """A connected agent; `peer` is the address that it connected from.

    It adds itself to `backlog` when it does not read as fast as it is sent data.
    """

    def __init__(self, link: Link, identity: Identity, *, peer: str, backlog: set[Attached]) -> None:
        self.link, self.identity, self.peer = link, identity, peer
        self._backlog = backlog
        self.prepared: set[int] = set()
        self.quiet = 0.0
        """Seconds for which nothing has arrived although something was due."""
        self._heard = 0
        self._ranks: dict[int, RemoteRank] = {}
        self._numbers = 0

    @property
    def alive(self) -> bool:
        """Whether it is connected."""
        return not self.link.ended

    @property
    def load(self) -> tuple[int, int]:
        """How many ranks it has now, and how many it has ever forked: the agent with the least is used next."""
        return len(self._ranks), self._numbers

    @property
    def busy(self) -> bool:
        """Whether its ranks run tasks, so that reports are due."""
        return any(one.busy for one in self._ranks.values())

    def send(self, order: Order) -> None:
        """Send an order. One that is lost does no harm: the loss of the agent is noticed elsewhere."""
        self.link.send(encode(order))
        if self.link.queued:
            self._backlog.add(self)

    def fork(
        self,
        *,
        rank: int,
        world_size: int,
        environment: int,
        device_type: str,
        backend: str | None,
        group_timeout: float,
        pulse: float,
        generation: Generation,
    ) -> RemoteRank:
        """Order a rank to be forked; `pulse` is the seconds between two reports on its progress."""
        self._numbers += 1
        one = RemoteRank(self, self._numbers, rank=rank, generation=generation)
        self._ranks[self._numbers] = one
        self.send(
            Fork(
                member=self._numbers,
                environment=environment,
                rank=rank,
                world_size=world_size,
                device_type=device_type,
                backend=backend,
                group_timeout=group_timeout,
                pulse=pulse,
            )
        )
        return one

    def forget(self, one: RemoteRank) -> None:
        """Ignore further reports on a rank."""
        self._ranks.pop(one.number, None)

    def hear(self) -> None:
        """Read what has arrived.

        Raises:
            msgspec.MsgspecError: an agent sends no such message.
        """
        self.link.pull()
        if self.link.heard != self._heard:
            self._heard, self.quiet = self.link.heard, 0.0
        while self.link.messages:
            word = read_word(self.link.messages.popleft())
            if isinstance(word, Pulse):
                for seen in word.ranks:
                    found = self._ranks.get(seen.member)
                    if found is not None:
                        found.pulse, found.pulsed = seen, time.monotonic()
            elif word.member in self._ranks:
                self._ranks[word.member].hear(word)

    def lose(self) -> str:
        """Close the connection for good; return which agent it was and why it ended."""
        self.link.end("was closed at the end")
        text = f"{self.identity}: its connection {printable(self.link.ended)}"
        for one in self._ranks.values():
            one.lose(text)
        self._ranks.clear()
        self.link.close()
        return text
