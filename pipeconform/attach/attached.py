"""In the controller: one connected agent, and the ranks that it has forked."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec

from pipeconform.attach.greeting import Identity, printable
from pipeconform.attach.link import Link
from pipeconform.attach.messages import Fork, Gone, Hand, Order, Pulse, Said, Seen, Told, encode, words
from pipeconform.ranks.channel import Frame
from pipeconform.ranks.wire import Exited, Kind, frame

__all__ = ["Attached", "RemoteGroup", "RemoteRank"]

_LARGE = 1 << 14  # bytes of an incoming message that count as movement; pulses are smaller


@dataclass
class RemoteGroup:
    """The ranks of one world. Each rank records what happened to it, so that no caller looks at all of them."""

    pulse: float
    """Seconds between two reports of an agent on the progress of its ranks."""
    channels: tuple[RemoteRank, ...] = ()
    discarded: bool = False
    exits: dict[int, Exited] = field(default_factory=dict)
    unfit: dict[int, str] = field(default_factory=dict)
    """By rank why it could not be set up."""
    _ready: int = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.channels)

    @property
    def pids(self) -> tuple[int, ...] | None:
        """Process ids, each on its own host; None until all are known."""
        return tuple(one.pid for one in self.channels) if self.ready else None

    @property
    def ready(self) -> bool:
        """Whether all are set up; called after every message, so ranks that were ready are not checked again."""
        while self._ready < self.size and self.channels[self._ready].seen is not None:
            self._ready += 1
        return self._ready == self.size


class RemoteRank:
    """The state of one rank on an agent, and what arrived from it."""

    def __init__(self, agent: Attached, number: int, *, rank: int, group: RemoteGroup) -> None:
        self.agent, self.number, self.rank = agent, number, rank
        self._group = group
        self.frames: deque[Frame] = deque()
        self.ended, self.wrong = False, ""
        self.pid = 0
        self.seen: dict[str, str | None] | None = None
        self.exited: Exited | None = None
        self.printed = ""
        self.began = 0.0
        """When its task was handed over, on the controller's clock."""
        self.busy, self._task = False, 0
        self.pulse: Seen | None = None
        self.pulsed = 0.0
        self.replies: dict[int, Told] = {}
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
        self.busy, self._task, self.pulse, self.printed = True, number, None, ""
        # before it is sent: the agent may start at once, and no end may seem to precede its start
        self.began = self.pulsed = time.monotonic()
        title = name.encode()
        head = frame(number, kind=Kind.NAME, length=len(title)) + title
        frames = head + frame(number, kind=Kind.TASK, length=len(payload)) + payload
        self.agent.send(Hand(member=self.number, task=number, frames=frames))

    def hear(self, word: Said | Gone | Told) -> None:
        """Record a report of its agent."""
        match word:
            case Said() if self.seen is None:
                self._set_up(word)
            case Said():
                self.busy = self.busy and word.number != self._task
                self._bytes += len(word.body)
                with contextlib.suppress(ValueError):  # a kind of frame that no rank of ours sends
                    self.frames.append(
                        Frame(word.number, self.began + word.after, Kind(word.kind), word.body)
                    )
            case Gone():
                self.printed = word.output
                lost = f"{self.agent.identity}: {printable(word.lost)}" if word.lost else ""
                self._ended(word.code, self.began + word.after, lost=lost)
            case Told():
                self.replies[word.ticket] = word

    def _set_up(self, word: Said) -> None:
        """Take what a rank says before its first task; rank 0 says where the others meet it."""
        if word.kind == Kind.STORE:
            order = frame(0, kind=Kind.STORE, length=len(word.body)) + word.body
            for one in self._group.channels[1:]:
                one.agent.send(Hand(member=one.number, task=0, frames=order))
        elif word.kind == Kind.READY:
            try:
                self.seen = msgspec.msgpack.decode(word.body, type=dict[str, str | None])
            except msgspec.MsgspecError as error:
                self._group.unfit[self.rank] = f"it sent what cannot be read: {printable(str(error))}"
            self.pid = word.pid
        else:
            self._group.unfit[self.rank] = word.body.decode(errors="replace")

    def _ended(self, code: int, moment: float, *, lost: str) -> None:
        if self.exited is None:
            self.busy = False
            self.exited = Exited(group=0, rank=self.rank, code=code, moment=moment, lost=lost)
            self._group.exits[self.rank] = self.exited

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
        group: RemoteGroup,
        rank: int,
        *,
        world_size: int,
        environment: int,
        device_type: str,
        backend: str | None,
    ) -> RemoteRank:
        """Order a rank of `group` to be forked."""
        self._numbers += 1
        one = self._ranks[self._numbers] = RemoteRank(self, self._numbers, rank=rank, group=group)
        order = Fork(
            member=self._numbers,
            environment=environment,
            rank=rank,
            world_size=world_size,
            device_type=device_type,
            backend=backend,
            pulse=group.pulse,
        )
        self.send(order)
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
            word = words.decode(self.link.messages.popleft())
            if isinstance(word, Pulse):
                for seen in word.ranks:
                    if (found := self._ranks.get(seen.member)) is not None:
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
