"""Ranks that are no processes: what arrives from them, and when, is written down by the test.

Time passes only in :meth:`ActedRanks.step`, which a pool calls wherever it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pipeconform.ranks.channel import Frame
from pipeconform.ranks.pool import Pending, Pool
from pipeconform.ranks.standing import Standing
from pipeconform.ranks.wire import Exited, Kind

LIMIT = 10.0
IDLE = 0.5
AFTER_FAILURE = 0.25
_MOST_STEPS = 5_000  # a pool that still waits then would wait for ever


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class ActedChannel:
    frames: deque[Frame] = field(default_factory=deque)
    unread: list[Frame] = field(default_factory=list)
    """What the kernel still holds when the process has ended."""
    ended: bool = False
    wrong: str = ""
    receiving: bool = False
    moved: int = 0

    def pull(self, *, everything: bool = False) -> None:
        self.frames.extend(self.unread)
        self.unread.clear()


@dataclass
class ActedGroup:
    channels: tuple[ActedChannel, ...]
    exits: dict[int, Exited] = field(default_factory=dict)
    discarded: bool = False

    @property
    def size(self) -> int:
        return len(self.channels)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(100 + rank for rank in range(self.size))


@dataclass
class ActedEyes:
    moving: bool = True
    held: frozenset[int] = frozenset()

    def progress(self, ranks: Sequence[int]) -> bool:
        return self.moving

    def stopped(self, rank: int) -> bool:
        return rank in self.held

    def withheld(self, ranks: Sequence[int]) -> float:
        return 0.0


@dataclass
class ActedQuestion:
    given: Mapping[int, Standing]
    over: bool = True

    def answers(self) -> dict[int, Standing]:
        return dict(self.given)

    def wait(self) -> dict[int, Standing]:
        return dict(self.given)


class ActedRanks:
    """A crew; ``log`` has what a pool has done with it, in order."""

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self.clock = clock
        self.log: list[object] = []
        self.handed: list[tuple[int, int, str, bytes]] = []
        self.seen = {rank: {"RANK": str(rank)} for rank in range(size)}
        self.group = ActedGroup(tuple(ActedChannel() for _ in range(size)))
        self.sight = ActedEyes()
        self.texts: dict[int, str] = {}
        self.standings: Callable[[Sequence[int]], ActedQuestion] = lambda ranks: ActedQuestion({})
        self.asked: list[tuple[int, ...]] = []
        self.stacked: list[tuple[int, ...]] = []
        self.trimmed: list[tuple[int, ...]] = []
        self.debugged: int | None = None
        self.steps: list[float] = []
        self.failing: dict[str, BaseException] = {}
        """By the name of a method, what it raises."""
        self._due: list[tuple[float, Callable[[], object]]] = []

    # ------------------------------------------------------------------------------------- what happens to the ranks

    def at(self, seconds: float, happens: Callable[[], object]) -> None:
        """Let something happen so many seconds from now."""
        self._due.append((self.clock.now + seconds, happens))

    def answers(self, rank: int, body: bytes = b"", **how: object) -> None:
        """An answer arrives from a rank: of the present task, sent now, unless `how` says otherwise."""
        self.group.channels[rank].frames.append(self.frame(body, **how))

    def frame(self, body: bytes, **how: object) -> Frame:
        """An answer to the present task."""
        number = max((one[1] for one in self.handed), default=0)
        return Frame(**{"number": number, "moment": self.clock.now, "kind": Kind.BYTES, "body": body, **how})

    def raises(self, rank: int, error: object) -> None:
        """A rank tells what its task raised."""
        self.answers(rank, msgspec.msgpack.encode(error), kind=Kind.RAISED)

    def ends(self, rank: int, *, code: int = -9, lost: str = "", ago: float = 0.0) -> None:
        """The process of a rank ends."""
        moment = self.clock.now - ago
        self.group.exits[rank] = Exited(group=1, rank=rank, code=code, moment=moment, lost=lost)

    # ----------------------------------------------------------------------------------------------------- of a crew

    def _called(self, name: str) -> None:
        if name in self.failing:
            raise self.failing[name]
        self.log.append(name)

    def form(self) -> None:
        self._called("form")
        if self.group.discarded:
            self.group = ActedGroup(tuple(ActedChannel() for _ in range(self.size)))

    def wait_until_formed(self) -> None:
        self._called("wait until formed")

    def discard(self, *, wait: bool = False) -> None:
        self._called("discard and wait" if wait else "discard")
        self.group.discarded = True

    def rest(self) -> None:
        self._called("rest")

    def wake(self) -> None:
        self._called("wake")

    def hand(self, rank: int, *, number: int, name: str, payload: bytes) -> None:
        self.log.append("hand")
        self.handed.append((rank, number, name, payload))

    def step(self, timeout: float) -> None:
        self.steps.append(timeout)
        assert len(self.steps) < _MOST_STEPS, "the pool waits for ever"
        self.clock.now += timeout
        due = [happens for moment, happens in self._due if moment <= self.clock.now + 1e-9]
        self._due = [one for one in self._due if one[1] not in due]
        for happens in due:
            happens()

    def require_alive(self) -> None:
        if "require alive" in self.failing:
            raise self.failing["require alive"]

    def eyes(self) -> ActedEyes:
        return self.sight

    def printed(self, rank: int) -> str:
        return self.texts.get(rank, "")

    def show_output(self, *, last: bool = False) -> None:
        self.log.append("show the last output" if last else "show output")

    def trim_output(self, ranks: Sequence[int]) -> None:
        self.trimmed.append(tuple(ranks))

    def in_debugger(self) -> int | None:
        return self.debugged

    def ask(self, ranks: Sequence[int]) -> ActedQuestion:
        self.asked.append(tuple(ranks))
        return self.standings(ranks)

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        self.stacked.append(tuple(ranks))
        return {rank: f"stack of {rank}" for rank in ranks}


def pool_of(ranks: ActedRanks) -> Pool:
    return Pool(ranks, idle_limit=IDLE, idle_limit_after_failure=AFTER_FAILURE)


def started(ranks: ActedRanks, *, failure_expected: bool = False) -> Pending:
    """A task that all ranks have been handed; its pool is alive as long as it is."""
    return pool_of(ranks).start("a:b", time_limit=LIMIT, failure_expected=failure_expected)
