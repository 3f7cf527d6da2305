"""What a pool needs from its ranks, whether they are processes of this machine or of agents on others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pipeconform.ranks.channel import Frame
from pipeconform.ranks.standing import Standing
from pipeconform.ranks.wire import Exited

if TYPE_CHECKING:
    from pipeconform.ranks.devices import Devices
    from pipeconform.ranks.environment import Environment
    from pipeconform.ranks.verdict import VerdictVector

__all__ = [
    "Asked",
    "CasePool",
    "Eyes",
    "RankChannel",
    "RankCrew",
    "RankGroup",
    "RankPools",
    "SparePool",
    "Task",
]


class RankChannel(Protocol):
    """What arrives from one rank."""

    frames: deque[Frame]
    ended: bool
    wrong: str
    """What arrived that none of our ranks sends; empty while all is well."""

    @property
    def receiving(self) -> bool:
        """Whether part of an answer has arrived: the rank has finished computing."""

    @property
    def moved(self) -> int:
        """A number that changes whenever bytes of a task or an answer move."""

    def pull(self, *, everything: bool = False) -> None:
        """Read what has arrived."""


class RankGroup(Protocol):
    """One generation of rank processes."""

    exits: dict[int, Exited]
    discarded: bool

    @property
    def channels(self) -> Sequence[RankChannel]:
        """In rank order."""

    @property
    def pids(self) -> tuple[int, ...] | None:
        """In rank order, each on its own host; None until all are known."""

    @property
    def size(self) -> int:
        """Number of ranks."""


class Eyes(Protocol):
    """Sees whether ranks compute or only wait."""

    def progress(self, ranks: Sequence[int]) -> bool:
        """Whether any of `ranks` did something since the last call; True also if that cannot be seen."""

    def stopped(self, rank: int) -> bool:
        """Whether `rank` was held by a signal when last looked at."""

    def withheld(self, ranks: Sequence[int]) -> float:
        """For how many seconds others took the processors away from `ranks` since the first look; 0 if unknown."""


class Asked(Protocol):
    """A question to some ranks about what they are doing; a rank may never answer."""

    def answers(self) -> dict[int, Standing]:
        """The answers so far."""

    def wait(self) -> dict[int, Standing]:
        """The answers when no more are expected."""

    @property
    def over(self) -> bool:
        """Whether every rank has answered, or will not."""


class RankCrew(Protocol):
    """Keeps a generation of ranks and forms the next one when it is broken."""

    seen: dict[int, dict[str, str | None]]
    """By rank, the environment variables that it sees."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def group(self) -> RankGroup:
        """The present generation."""

    def form(self) -> None:
        """Start a generation unless there is a whole one."""

    def wait_until_formed(self) -> None:
        """Wait until every rank is set up."""

    def discard(self, *, wait: bool = False) -> None:
        """Kill the present generation, if any; with `wait`, return when its processes are gone."""

    def rest(self) -> None:
        """Stop idle ranks, where that saves processor time and does no harm."""

    def wake(self) -> None:
        """Let them go on."""

    def hand(self, rank: int, *, number: int, name: str, payload: bytes) -> None:
        """Send a task to a rank."""

    def step(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for something to happen, and record it."""

    def require_alive(self) -> None:
        """Raise PoolError if nothing more can arrive."""

    def eyes(self) -> Eyes:
        """Look at the present generation, during one task."""

    def printed(self, rank: int) -> str:
        """The end of what `rank` printed in its present task."""

    def show_output(self, *, last: bool = False) -> None:
        """Show what ranks have printed, if it is to be shown; with `last`, their task is over."""

    def trim_output(self, ranks: Sequence[int]) -> None:
        """Keep the output of `ranks` from filling the disk."""

    def in_debugger(self) -> int | None:
        """The rank that is in the debugger, for whose user everything waits; None if there is none."""

    def ask(self, ranks: Sequence[int]) -> Asked:
        """Ask `ranks` what they are doing."""

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """The Python stacks of `ranks`; a rank may not answer."""


class CasePool(Protocol):
    """Runs tasks on the ranks of one world."""

    def run(
        self,
        task: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        time_limit: float,
        failure_expected: bool = False,
    ) -> VerdictVector:
        """One verdict per rank; see `pipeconform.ranks.pool.Pool.run`."""

    def restart(self) -> None:
        """Replace all rank processes with new ones."""


class Task(Protocol):
    """A running task."""

    def wait(self) -> VerdictVector:
        """Return one verdict per rank, when the task's time limit is over at the latest."""

    def cancel(self) -> None:
        """Give up: end the ranks if the task is not finished."""


class SparePool(CasePool, Protocol):
    """A process beside the ranks, which works while they do."""

    def start(
        self,
        task: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        time_limit: float,
        failure_expected: bool = False,
    ) -> Task:
        """Begin a task and return without waiting for it."""

    def wait_until_formed(self) -> tuple[dict[str, str | None], ...]:
        """Wait until the process is set up; return the environment variables that it sees."""


class RankPools(Protocol):
    """Pools by world size, and the oracle's process beside them."""

    environment: Environment
    devices: Devices
    idle_limit: float
    """Seconds; applies to pools that are made from now on, and may apply to older ones."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that ranks run on, other than this machine."""

    @property
    def oracle(self) -> SparePool:
        """One process like a rank, without a process group."""

    def of_size(self, world_size: int) -> CasePool:
        """The pool of `world_size` ranks; do not keep it over requests for other sizes."""

    def clear(self) -> None:
        """End every process, and wait until they are gone; the next task starts others."""
