"""The processes that an engine starts agents with: followed while a run judges, and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeconform.attach.engines import Engine
from pipeconform.attach.token import VARIABLE
from pipeconform.errors import HarnessError

__all__ = ["supervised"]

_LOOK = 0.2  # seconds between two looks at the processes
_PAUSE = 1.0  # seconds before an agent is started again
_MOST = 20  # times that one agent is started again
_REFUSED = 2  # the exit code of an agent that would be refused again
_GOODBYE = 10.0  # seconds for processes to end by themselves once their agents were sent home
_TERM = 5.0  # seconds to end after SIGTERM

Say = Callable[[str], None]


@dataclass
class _Slot:
    process: subprocess.Popen[bytes]
    attempts: int = 0
    due: float | None = None
    """When it is started again; None while it runs, and if it is not."""
    given_up: bool = field(default=False)


@contextmanager
def supervised(engine: Engine, *, agents: int, controller: str, token: str, say: Say) -> Iterator[None]:
    """Keep `agents` agents of `engine` connected to the controller within the context.

    The token is passed in the environment of the commands. At the end, whose agents have been sent home are waited for,
    and others ended.

    Raises:
        HarnessError: the engine's command cannot be started.
    """
    environment = {**os.environ, VARIABLE: token}
    slots: list[_Slot] = []
    over = threading.Event()
    watcher = threading.Thread(
        target=_watch,
        args=(engine, slots, over),
        kwargs={"controller": controller, "environment": environment, "say": say},
        name="agents",
        daemon=True,
    )
    try:
        commands = engine.commands(agents, controller=controller)
        slots.extend(_Slot(_started(command, environment)) for command in commands)
        say(f"started {agents} agents by {engine.title}")
        watcher.start()
        yield
    finally:
        over.set()
        if watcher.ident is not None:
            watcher.join()
        _end([slot.process for slot in slots])


def _started(command: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        # a session of its own: Ctrl-C in a terminal is the run's, which then sends agents home
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - ours
    except OSError as error:
        raise HarnessError(f"cannot start {command[0]}: {error.strerror or error}") from error


def _watch(
    engine: Engine,
    slots: list[_Slot],
    over: threading.Event,
    *,
    controller: str,
    environment: dict[str, str],
    say: Say,
) -> None:
    while not over.wait(_LOOK):
        for number, slot in enumerate(slots):
            if slot.given_up:
                continue
            if slot.due is None and slot.process.poll() is not None:
                _note_end(engine, number, slot, say=say)
            elif slot.due is not None and time.monotonic() >= slot.due:
                slot.attempts, slot.due = slot.attempts + 1, None
                try:
                    command = engine.again(number, attempt=slot.attempts, controller=controller)
                    slot.process = _started(command, environment)
                except HarnessError as error:
                    slot.given_up = True
                    say(str(error))


def _note_end(engine: Engine, number: int, slot: _Slot, *, say: Say) -> None:
    code = slot.process.returncode
    slot.given_up = engine.restarts_itself or code == _REFUSED or slot.attempts >= _MOST
    slot.due = None if slot.given_up else time.monotonic() + _PAUSE
    then = "it is not started again" if slot.given_up else "another is started"
    say(f"{engine.title} {number} ended with code {code}; {then}")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for processes whose agents were sent home; then SIGTERM, which launchers pass on, then SIGKILL."""
    for limit, signum in ((_GOODBYE, signal.SIGTERM), (_TERM, signal.SIGKILL)):
        deadline = time.monotonic() + limit
        for one in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, deadline - time.monotonic()))
        for one in processes:
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signum)
    for one in processes:
        one.wait()
