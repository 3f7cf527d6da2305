"""The controller's side of a fork server: start it, request rank processes, learn when they end.

One server serves one :class:`Environment`. Nothing here imports torch, starts a thread or blocks for long:
:meth:`ForkServer.step` moves whatever bytes can move, for all pools of the server at once, and every wait
of a pool is a loop around it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeconform.errors import PoolError
from pipeconform.ranks.channel import Channel
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.interrupts import deferred_interrupts
from pipeconform.ranks.output_tail import shortened
from pipeconform.ranks.process_tree import end_session
from pipeconform.ranks.wire import (
    Exited,
    Fork,
    Forked,
    ForkFailed,
    Hello,
    Kill,
    RankSpec,
    Report,
    Started,
    encode,
    report_decoder,
)

__all__ = ["PRELOAD", "ForkServer", "Group", "end_all_ranks", "tail"]

PRELOAD = ("torch", "torch.distributed")

# The controller's own import path, so that both sides import the same pipeconform from the same place.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pipeconform.ranks.server import main; main(int(sys.argv[1]))"
)
_START_LIMIT = 120.0  # seconds for all preloads
_MOST_RANKS = 253  # sockets that the kernel passes in one message
_END_LIMIT = 5.0  # seconds for a server to end its children and itself
_TAIL = 4096  # characters of output quoted in messages
_LONGEST = 1 << 17  # bytes of output that they are taken from: a dump of many threads is long


@dataclass
class Group:
    """One generation of rank processes; its fields fill in as reports arrive."""

    number: int
    channels: tuple[Channel, ...]
    pids: tuple[int, ...] | None = None
    exits: dict[int, Exited] = field(default_factory=dict)
    failure: str | None = None
    discarded: bool = False

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.channels)

    @property
    def gone(self) -> bool:
        """Whether none of its processes is alive."""
        return self.failure is not None or len(self.exits) == self.size


@dataclass
class _Requested:
    """What was asked of a server and by whom; it outlives the server's object."""

    controller: int
    groups: int = 0


_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()


class ForkServer:
    """A process with ``preload`` imported, under ``environment``, that forks rank processes in milliseconds.

    It starts in the background; :meth:`wait_until_started` (or the first task of a pool) waits for it.
    ``folder`` is where its temporary folder is made, by default where ``tempfile`` says.

    Raises:
        PoolError: the temporary folder or the process cannot be made.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        preload: Sequence[str] = PRELOAD,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        _require_working_folder()
        self.environment = Environment() if environment is None else environment
        self.served_devices: set[str] = set()
        """Devices, other than the CPU, on which ranks have been set up."""
        self._selector = selectors.DefaultSelector()
        self._groups: dict[int, Group] = {}
        self._requested = _Requested(controller=os.getpid())
        self._started: Started | None = None
        self._death: str | None = None
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="pipeconform-", dir=folder))
        except OSError as error:
            self._selector.close()
            raise PoolError(f"cannot make a temporary folder for rank processes: {error}") from error
        self._connection, theirs = socket.socketpair()
        try:
            with theirs, (self.folder / "server.stderr").open("wb") as stderr:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
                    [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                    # torch makes this folder when it is imported, for good, unless it is ours to remove
                    env={
                        "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
                        **self.environment.process_environment(),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a Ctrl-C at the terminal is for the controller alone
                )
        except OSError as error:
            self._connection.close()
            self._selector.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise PoolError(f"cannot start the fork server: {error}") from error
        self._control = Channel(self._connection)
        self._selector.register(self._control, selectors.EVENT_READ, None)
        _servers.add(self)
        self._end = weakref.finalize(
            self, _end, self._process, self._control, self._selector, self.folder, self._requested
        )
        with contextlib.suppress(PoolError):  # wait_until_started says it better
            self._command(encode(Hello(preload=tuple(preload), folder=str(self.folder))))

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the server can still fork."""
        return self._end.alive and self._death is None

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`step` would find something to do."""
        return self._selector.fileno()

    def wait_until_started(self, *, limit: float = _START_LIMIT) -> None:
        """Wait, at most ``limit`` seconds, until everything is preloaded.

        Raises:
            PoolError: a preload failed (its stderr is quoted), took too long, or the server is closed.
        """
        deadline = time.monotonic() + limit
        while self._started is None:
            self.require_alive()
            left = deadline - time.monotonic()
            if left <= 0:
                raise PoolError(f"the fork server did not start within {limit:g} s{self._quote()}")
            self.step(left)

    def require_alive(self) -> None:
        """Raise PoolError, with the reason, if the server cannot serve."""
        if not self._end.alive:
            raise PoolError("the fork server is closed")
        if self._death is not None:
            raise PoolError(self._death)

    def fork(self, specs: Sequence[RankSpec]) -> Group:
        """Request one process per spec; return at once, the process ids follow.

        Raises:
            PoolError: the server is gone, or there are no file descriptors left.
        """
        self.require_alive()
        if len(specs) > _MOST_RANKS:
            raise PoolError(
                f"{len(specs)} ranks on one machine; at most {_MOST_RANKS} can be forked: use fewer, or --attach"
            )
        with contextlib.ExitStack() as undo, deferred_interrupts():
            theirs: list[socket.socket] = []
            channels: list[Channel] = []
            for _ in specs:
                try:
                    mine, other = socket.socketpair()
                except OSError as error:
                    for channel in channels:
                        channel.close()
                    raise PoolError(f"cannot make a socket for a rank process: {error}") from error
                undo.enter_context(other)
                theirs.append(other)
                channels.append(Channel(mine))
            self._requested.groups += 1
            group = Group(number=self._requested.groups, channels=tuple(channels))
            self._groups[group.number] = group
            for channel in channels:
                self._selector.register(channel, selectors.EVENT_READ, channel)
            self._command(
                encode(Fork(group=group.number, specs=tuple(specs))), [other.fileno() for other in theirs]
            )
        return group

    def signal(self, group: Group, *, ranks: Sequence[int], signum: int) -> None:
        """Have the server signal those ranks of ``group`` that are still alive."""
        with deferred_interrupts(), contextlib.suppress(PoolError):  # a dead server's children are dead
            self._command(encode(Kill(group=group.number, ranks=tuple(ranks), signal=signum)))

    def discard(self, group: Group) -> None:
        """Kill what is alive of ``group`` and close its sockets; :attr:`Group.gone` says when this is done."""
        if group.discarded:
            return
        with deferred_interrupts():
            group.discarded = True
            if self._end.alive:
                self.signal(group, ranks=range(group.size), signum=signal.SIGKILL)
            for channel in group.channels:
                self._unwatch(channel)
                channel.close()
            self._forget_if_gone(group)

    def end_ranks(self) -> None:
        """Kill every rank of every group; the pools that they belong to form others for their next tasks."""
        for group in self._groups.values():
            self.signal(group, ranks=range(group.size), signum=signal.SIGKILL)

    def step(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for something to happen, and record it."""
        if not self._end.alive:
            return
        for key in list(self._selector.get_map().values()):
            channel = key.data
            if channel is None:
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.sending else 0)
            if key.events != wanted:
                with contextlib.suppress(KeyError, ValueError):  # collecting a pool may end channels any time
                    self._selector.modify(channel, wanted, channel)
        events = self._selector.select(max(timeout, 0.0))
        with deferred_interrupts():
            for key, mask in events:
                channel = self._control if key.data is None else key.data
                if mask & selectors.EVENT_WRITE:
                    channel.push()
                if mask & selectors.EVENT_READ:
                    channel.pull()
                if channel.ended:
                    self._unwatch(channel)
            self._hear()

    def _hear(self) -> None:
        while self._control.frames:
            self._note(report_decoder.decode(self._control.frames.popleft().body))
        if self._control.ended and self._death is None:
            self._death = self._obituary()

    def _note(self, report: Report) -> None:
        match report:
            case Started():
                self._started = report
            case Forked(group=number, pids=pids):
                self._groups[number].pids = pids
            case ForkFailed(group=number, reason=reason):
                self._groups[number].failure = reason
                self._forget_if_gone(self._groups[number])
            case Exited(group=number, rank=rank):
                self._groups[number].exits[rank] = report
                self._forget_if_gone(self._groups[number])

    def _forget_if_gone(self, group: Group) -> None:
        if group.discarded and (group.gone or self._death is not None):
            self._groups.pop(group.number, None)

    def _unwatch(self, channel: Channel) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel)

    def _command(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        deadline = time.monotonic() + _START_LIMIT
        while data:
            try:
                sent = socket.send_fds(self._connection, [data], list(descriptors))
            except BlockingIOError:
                # Only a server that is still importing is slow to read.
                poll = select.poll()  # select() would refuse high descriptors
                poll.register(self._connection, select.POLLOUT)
                if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                    raise PoolError("the fork server does not read its commands") from None
            except OSError as error:
                raise PoolError(self._death or f"the fork server is gone: {error}") from error
            else:
                data, descriptors = data[sent:], ()

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_LIMIT)
            end_session(self._process.pid)  # ranks died with it, but not the processes that they had started
        did = "ended" if self._started else "could not start"
        return f"the fork server {did} (exit code {self._process.returncode}){self._quote()}"

    def _quote(self) -> str:
        text = tail(self.folder / "server.stderr")
        return f"; its stderr:\n{text}" if text else ""

    def close(self) -> None:
        """End every rank process, the server and the temporary folder; closing twice is harmless."""
        with deferred_interrupts():
            for group in list(self._groups.values()):
                self.discard(group)
            self._end()


def end_all_ranks() -> None:
    """Kill the ranks of every server of this process, on whatever device they are."""
    for server in tuple(_servers):
        if server.alive:
            server.end_ranks()


def _require_working_folder() -> None:
    """Say in plain words why torch could not be imported, which would end the server with a message about a library."""
    try:
        os.getcwd()
    except OSError as error:
        raise PoolError(
            f"the folder that this process was started in cannot be used any more ({error.strerror}), and torch cannot "
            f"be imported there; run pipeconform in a folder that stays"
        ) from error


def tail(path: Path) -> str:
    """Return the last characters of a text file, see `shortened`; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST))
            return shortened(file.read().decode(errors="replace"), limit=_TAIL)
    except OSError:
        return ""


def _end(
    process: subprocess.Popen[bytes],
    control: Channel,
    selector: selectors.BaseSelector,
    folder: Path,
    requested: _Requested,
) -> None:
    """End a server without its object: at garbage collection and at the interpreter's exit."""
    with deferred_interrupts():
        selector.close()
        control.close()  # the server kills its children when it reads the end of file
        if os.getpid() != requested.controller:  # a fork of the controller owns none of it
            return
        try:
            # A server that never forked has nothing to end, and would first import what it preloads.
            process.wait(timeout=_END_LIMIT if requested.groups else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end_session(process.pid)
        shutil.rmtree(folder, ignore_errors=True)
