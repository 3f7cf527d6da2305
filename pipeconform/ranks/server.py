"""The fork server's own process: preload, fork on request, reap, report.

It is started by :mod:`pipeconform.ranks.forkserver` and owns every rank process: it alone signals them, so a
signal can only reach a child that is not reaped yet and never a stranger with a recycled process id.

1. Import the modules to preload. There must be one thread at the end, or forking would be unsafe.
2. Serve commands and deaths, whichever comes first, until the control socket ends.
3. Then kill every living child, remove the temporary folder and exit.

If the *server* is killed, nothing of ours survives it: each child asks the kernel to be killed
with its parent where there is ``prctl``, and reads an end of file from its socket everywhere. The processes that a rank
had started are in the server's session, which the controller then ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import NoReturn

from pipeconform.ranks import rank as rank_process
from pipeconform.ranks.huge_pages import use_huge_pages
from pipeconform.ranks.process_tree import adopt_orphans, children_of, die_with_parent
from pipeconform.ranks.wire import (
    HEADER,
    Command,
    Exited,
    Fork,
    Forked,
    ForkFailed,
    Hello,
    Kill,
    RankSpec,
    Report,
    Started,
    command_decoder,
    encode,
)

__all__ = ["main"]

_MAX_DESCRIPTORS = 253  # the kernel's limit for one message
_ORPHAN_CHECK = 1.0  # seconds between looks at whether the controller still lives
_MANY_FORKS = 12  # from this fork on, huge pages save more time than moving to them takes


class _Control:
    """The server's end of the socket to the controller."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._bytes = bytearray()
        self.descriptors: deque[int] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Command] | None:
        """Read what has arrived; return the complete commands, or None at end of file."""
        data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, _MAX_DESCRIPTORS)
        self.descriptors.extend(descriptors)
        if not data:
            return None
        self._bytes += data
        commands: list[Command] = []
        while len(self._bytes) >= HEADER.size:
            length = HEADER.unpack_from(self._bytes)[3]
            end = HEADER.size + length
            if len(self._bytes) < end:
                break
            commands.append(command_decoder.decode(self._bytes[HEADER.size : end]))
            del self._bytes[:end]
        return commands

    def report(self, message: Report) -> None:
        self._socket.sendall(encode(message))

    def close(self) -> None:
        self._socket.close()


class _Server:
    """The living children, and the loop that serves the controller."""

    def __init__(self, control: _Control, wakeup: int) -> None:
        self._control = control
        self._wakeup = wakeup
        self._children: dict[int, tuple[int, int]] = {}  # pid -> (group, rank)
        self._forks = 0
        self._controller = os.getppid()
        self._pid = os.getpid()

    def serve(self) -> None:
        """Run until the controller is gone."""
        while os.getppid() == self._controller:
            ready, _, _ = select.select([self._control.fileno(), self._wakeup], [], [], _ORPHAN_CHECK)
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._control.fileno() in ready:
                commands = self._control.receive()
                if commands is None:
                    return
                for command in commands:
                    self.obey(command)

    def obey(self, command: Command) -> None:
        """Carry out a command of the controller."""
        match command:
            case Fork(group=group, specs=specs):
                self._fork(group, specs)
            case Kill(group=group, ranks=ranks, signal=signum):
                for pid, (its_group, rank) in self._children.items():
                    if its_group == group and rank in ranks:
                        _send(pid, signum)
            case Hello():
                raise AssertionError("a server is greeted once")

    def _fork(self, group: int, specs: tuple[RankSpec, ...]) -> None:
        connections = [self._control.descriptors.popleft() for _ in specs]
        pids: list[int] = []
        if self._forks < _MANY_FORKS <= self._forks + len(specs):
            use_huge_pages()
        self._forks += len(specs)
        try:
            for spec, descriptor in zip(specs, connections, strict=True):
                pid = os.fork()  # this process has one thread: _preload saw to it
                if pid == 0:
                    self._become_rank(spec, descriptor, strangers=set(connections) - {descriptor})
                with contextlib.suppress(OSError):  # the child does the same; the first one wins
                    os.setpgid(pid, pid)
                pids.append(pid)
        except OSError as error:
            for pid in pids:
                _send(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._control.report(ForkFailed(group=group, reason=f"cannot fork a process: {error}"))
        else:
            self._children.update({pid: (group, rank) for rank, pid in enumerate(pids)})
            self._control.report(Forked(group=group, pids=tuple(pids)))
        finally:
            for descriptor in connections:
                os.close(descriptor)

    def _become_rank(self, spec: RankSpec, descriptor: int, *, strangers: set[int]) -> NoReturn:
        """In the child: release everything that belongs to the server, and run a rank."""
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            die_with_parent(parent=self._pid)
            os.close(self._wakeup)
            self._control.close()
            for stranger in strangers:
                os.close(stranger)
            code = rank_process.main(socket.socket(fileno=descriptor), spec)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)  # never unwind into the server's frames or run its exit handlers

    def _reap(self) -> None:
        for pid, (group, rank) in list(self._children.items()):
            # The zombie is left in place until its process group is killed: it holds the id.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            moment = time.monotonic()
            _send(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            del self._children[pid]
            self._control.report(
                Exited(group=group, rank=rank, code=os.waitstatus_to_exitcode(status), moment=moment)
            )
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End what dead ranks left behind: their subreaper inherits even what left the process group."""
        for pid in children_of(self._pid) - self._children.keys():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def end(self) -> None:
        """Kill and reap every child."""
        for pid in self._children:
            _send(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        self._end_orphans()


def _send(pid: int, signum: int) -> None:
    """Signal an unreaped child; a killed one takes its process group along."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
        if signum == signal.SIGKILL:
            os.killpg(pid, signum)


def _preload(modules: tuple[str, ...]) -> None:
    gc.disable()  # what is imported stays; to look for garbage among it takes a tenth of the time
    for name in modules:
        importlib.import_module(name)
        threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
        if threads != 1:
            raise RuntimeError(
                f"importing {name!r} started {threads - 1} thread(s); forking would lose them. "
                "Take it out of the preloaded modules"
            )
    gc.enable()


def main(descriptor: int) -> None:
    """Run the fork server on the socket ``descriptor`` until the controller goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the controller reacts to Ctrl-C
    connection = socket.socket(fileno=descriptor)
    control = _Control(connection)
    greeting = control.receive()
    while greeting == []:
        greeting = control.receive()
    if greeting is None or not isinstance(greeting[0], Hello):
        return
    controller, folder = os.getppid(), greeting[0].folder
    try:
        _preload(greeting[0].preload)
        adopt_orphans()
        wakeup, alarm = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(alarm, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # children keep the preloaded modules' pages shared
        server = _Server(control, wakeup)
        try:
            control.report(Started(pid=os.getpid()))
            for command in greeting[1:]:
                server.obey(command)
            server.serve()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the controller is gone
        finally:
            server.end()
        _remove(folder)
    finally:
        if os.getppid() != controller:
            _remove(folder)


def _remove(folder: str) -> None:
    """Remove the temporary folder for a controller that could not; a living one reads our stderr there."""
    shutil.rmtree(folder, ignore_errors=True)
