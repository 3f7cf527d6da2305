"""The rank processes of one pool through their generations: form, greet, discard, form again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeconform.errors import PoolError
from pipeconform.ranks import debugger
from pipeconform.ranks.devices import backends_in
from pipeconform.ranks.evidence import ended
from pipeconform.ranks.forkserver import ForkServer, Group, end_all_ranks, tail
from pipeconform.ranks.interrupts import deferred_interrupts
from pipeconform.ranks.output_stream import OutputStream
from pipeconform.ranks.questions import Question
from pipeconform.ranks.stacks import collect
from pipeconform.ranks.watch import LocalEyes
from pipeconform.ranks.wire import Kind, RankSpec, frame

__all__ = ["Crew"]

# Longer than any task may last, so that a rank is judged by the pool and not by a timeout inside torch.
_GROUP_TIMEOUT = 24 * 3600.0  # seconds
_OUTPUT_LIMIT = 32 << 20  # bytes of output kept of a rank that does not stop printing
_PAUSES = (1.0, 3.0, 6.0)  # seconds between attempts to set ranks up on a device that has served ranks before
_FORMATION_AGAIN = 30.0  # seconds for ranks to be ready there: a process that is not refused may wait forever
_GONE_LIMIT = 5.0  # seconds to wait for a killed process (a driver may hold it)


class Crew:
    """``size`` rank processes forked from ``server``.

    ``backend`` is a ``torch.distributed`` backend, or None for processes without a process group; ``devices`` names
    each rank's torch device (default: all on the CPU); ``formation_limit`` is seconds. ``stream`` shows what ranks
    print during tasks.
    """

    def __init__(
        self,
        server: ForkServer,
        *,
        size: int,
        backend: str | None = "gloo",
        devices: Sequence[str] | None = None,
        formation_limit: float = 60.0,
        stream: OutputStream | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least one rank, not {size}")
        self._devices = ("cpu",) * size if devices is None else tuple(devices)
        if len(self._devices) != size:
            raise ValueError(f"{size} ranks need as many devices, not {len(self._devices)}: {self._devices}")
        self.server = server
        self._backend = backend
        self._formation_limit = formation_limit
        self._stream = stream
        self._debugged = debugger.Request.of(server.environment.variables.get(debugger.VARIABLE))
        self._group: Group | None = None
        self._folder: Path | None = None
        self._ready: set[int] = set()
        self._resting = False
        self.seen: dict[int, dict[str, str | None]] = {}

    @property
    def group(self) -> Group:
        """The present generation."""
        assert self._group is not None, "a crew is formed before it is asked for"
        return self._group

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._devices)

    def output(self, rank: int) -> Path:
        """The file that holds what ``rank`` printed in its present task."""
        assert self._folder is not None, "a crew is formed before it is asked for"
        return self._folder / f"output-{rank}"

    def stacks_file(self, rank: int) -> Path:
        """The file that ``rank`` dumps its stacks to."""
        assert self._folder is not None, "a crew is formed before it is asked for"
        return self._folder / f"stacks-{rank}"

    def standing(self, rank: int) -> Path:
        """The file that ``rank`` writes its standing to."""
        assert self._folder is not None, "a crew is formed before it is asked for"
        return self._folder / f"standing-{rank}"

    def hand(self, rank: int, *, number: int, name: str, payload: bytes) -> None:
        """Send a task, ``"module:function"``, to ``rank``."""
        if self._stream is not None:
            self._stream.begin(rank, self.output(rank))
        title = name.encode()
        head = frame(number, kind=Kind.NAME, length=len(title)) + title
        parts = [head + frame(number, kind=Kind.TASK, length=len(payload)), payload]
        self.group.channels[rank].send(parts)

    def rest(self) -> None:
        """Stop the processes, if all are ready, until they are woken up.

        gloo's event loop looks for work a hundred times a second in every group of every idle process: with worlds of
        several sizes and variants, a tenth of a long run's processor time. Only Linux kills a stopped process whose
        parent has ended, so nowhere else are they stopped.
        """
        if (
            sys.platform == "linux"
            and backends_in(self._backend or "") == {"gloo"}
            and len(self._ready) == self.size
        ):
            self._resting = True
            self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let the processes go on, if they rest."""
        if self._resting:
            self._resting = False
            self._signal(signal.SIGCONT)

    def _signal(self, signum: signal.Signals) -> None:
        # the server leaves the zombie of a rank until the group is discarded, so no pid means another process
        for pid in self.group.pids or ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def step(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for something to happen, and record it."""
        self.server.step(timeout)

    def require_alive(self) -> None:
        """Raise PoolError, with the reason, if the server cannot serve."""
        self.server.require_alive()

    def eyes(self) -> LocalEyes:
        """Look at the present processes."""
        pids = self.group.pids
        assert pids is not None, "a rank that is ready was forked"
        return LocalEyes(dict(enumerate(pids)))

    def printed(self, rank: int) -> str:
        """Return the end of what ``rank`` printed in its present task."""
        return tail(self.output(rank))

    def show_output(self, *, last: bool = False) -> None:
        """Show what ranks have printed, if it is to be shown; with ``last``, to the end."""
        for rank in range(self.size) if self._stream is not None and self._folder is not None else ():
            assert self._stream is not None
            (self._stream.end if last else self._stream.show)(rank, self.output(rank))

    def trim_output(self, ranks: Sequence[int]) -> None:
        """Cut the output of ``ranks`` short where it has grown large."""
        for rank in ranks:
            with contextlib.suppress(OSError):  # a task may delete any file
                if self.output(rank).stat().st_size > _OUTPUT_LIMIT:
                    if self._stream is not None:
                        self._stream.lost(rank, self.output(rank))
                    os.truncate(self.output(rank), 0)  # the rank appends, so it goes on at the new end

    def in_debugger(self) -> int | None:
        """Return the rank that is in the debugger; None if there is none."""
        request = self._debugged
        if request is None or self._folder is None or not debugger.is_open(self._folder):
            return None
        return request.rank

    def ask(self, ranks: Sequence[int]) -> Question:
        """Ask ``ranks`` what they are doing."""
        return Question(self.server, self.group, paths={rank: self.standing(rank) for rank in ranks})

    def stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """Return the Python stacks of ``ranks``; a rank may not answer."""
        paths = {rank: self.stacks_file(rank) for rank in ranks}
        return collect(self.server, self.group, paths=paths)

    def form(self) -> None:
        """Start a generation if there is none, or a new one if one of its processes is gone.

        Raises:
            PoolError: no processes can be requested.
        """
        self.server.require_alive()
        if self._group is not None:
            self.server.step(0.0)
            if not self._broken(self._group):
                return
            self.discard()
        with deferred_interrupts():  # an interrupt must not leave a process that this object does not know of
            self._fork()

    @staticmethod
    def _broken(group: Group) -> bool:
        if group.exits or any(channel.ended for channel in group.channels):
            return True
        # The server reports an end with a delay; a process that is gone must not get the next task.
        return any(map(ended, group.pids or ()))

    def _fork(self) -> None:
        try:
            # the judged code may have emptied the temporary folder; the next case must run all the same
            self.server.folder.mkdir(parents=True, exist_ok=True)
            folder = self._folder = Path(tempfile.mkdtemp(prefix="group-", dir=self.server.folder))
            for rank in range(self.size):
                self.output(rank).touch()
                self.stacks_file(rank).touch()
        except OSError as error:
            raise PoolError(f"cannot make the files of a process group: {error}") from error
        self._group = self.server.fork(
            [
                RankSpec(
                    rank=rank,
                    world_size=self.size,
                    device=device,
                    backend=self._backend,
                    store=str(folder / "store"),
                    output=str(self.output(rank)),
                    stacks=str(self.stacks_file(rank)),
                    standing=str(self.standing(rank)),
                    variables=tuple(self.server.environment.effective()),
                    group_timeout=_GROUP_TIMEOUT,
                )
                for rank, device in enumerate(self._devices)
            ]
        )

    def wait_until_formed(self) -> None:
        """Wait until every rank is set up.

        Where a device has served ranks before, they are tried again after a pause, for which the ranks of all
        servers are ended: once a rank has been killed, NVIDIA's Multi-Process Service refuses others, or lets them
        wait, until every process that it had served is gone.

        Raises:
            PoolError: a process could not be forked, ended, failed or took too long; its output is quoted.
            VariantError: a rank does not see the environment's variables as they should be.
        """
        served = self.server.served_devices.issuperset(self._devices)
        for pause in _PAUSES if served else ():
            try:
                self._wait_until_formed(limit=min(_FORMATION_AGAIN, self._formation_limit))
            except PoolError:
                end_all_ranks()
                self.discard(wait=True)
                time.sleep(pause)
                self.form()
            else:
                return
        self._wait_until_formed(limit=self._formation_limit)
        self.server.served_devices.update(device for device in self._devices if device != "cpu")

    def _wait_until_formed(self, *, limit: float) -> None:
        # a rank can be ready before the server has reported its pid
        if len(self._ready) == self.size and self.group.pids is not None:
            return
        self.server.wait_until_started()
        deadline = time.monotonic() + limit
        while True:
            # what arrived while another pool waited has been read already: waiting for more could take forever
            for rank in range(self.size):
                self._greet(rank)
            if len(self._ready) == self.size and self.group.pids is not None:
                return
            self.server.step(max(0.0, min(1.0, deadline - time.monotonic())))
            self.server.require_alive()
            if self.group.failure is not None:
                raise PoolError(self.group.failure)
            if time.monotonic() > deadline:
                silent = [rank for rank in range(self.size) if rank not in self._ready]
                raise PoolError(
                    f"ranks {silent} were not ready within {limit:g} s"
                    + "".join(self._quote(rank) for rank in silent)
                )

    def _greet(self, rank: int) -> None:
        channel = self.group.channels[rank]
        if rank in self.group.exits:
            channel.pull(everything=True)
        if rank not in self._ready and channel.frames:
            first = channel.frames.popleft()
            if first.kind != Kind.READY:
                why = first.body.decode(errors="replace")
                raise PoolError(f"rank {rank} could not be set up:\n{why}{self._quote(rank)}")
            self.seen[rank] = msgspec.msgpack.decode(first.body, type=dict[str, str | None])
            self.server.environment.check(self.seen[rank], rank=rank)
            self._ready.add(rank)
        elif rank not in self._ready and channel.wrong:
            raise PoolError(f"rank {rank} sent {channel.wrong} while it was being set up{self._quote(rank)}")
        elif rank not in self._ready and rank in self.group.exits:
            code = self.group.exits[rank].code
            raise PoolError(f"rank {rank} ended with {code} while it was being set up{self._quote(rank)}")

    def _quote(self, rank: int) -> str:
        text = tail(self.output(rank)) or tail(self.server.folder / "server.stderr")
        return f"\nrank {rank} printed:\n{text}" if text else ""

    def discard(self, *, wait: bool = False) -> None:
        """Kill the present generation, if any; with ``wait``, return when its processes are gone."""
        with deferred_interrupts():
            group, folder = self._group, self._folder
            self._group, self._folder = None, None
            self._ready, self.seen, self._resting = set(), {}, False
            if group is None:
                return
            self.server.discard(group)
        deadline = time.monotonic() + _GONE_LIMIT
        while wait and self.server.alive and not group.gone and time.monotonic() < deadline:
            self.server.step(0.1)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
