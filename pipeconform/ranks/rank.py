"""A rank's process: set up once, then run tasks until the controller goes away.

A task is a function ``(context: RankContext, payload: bytes) -> bytes`` named ``"module:function"``. Its answer is
bytes because the controller runs no code of a rank: it decodes them by a schema, and unpickles nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from pipeconform.ranks import debugger, examiner
from pipeconform.ranks.blocking import wait_asleep
from pipeconform.ranks.connecting import NotConnectedError, connect
from pipeconform.ranks.devices import backend_for
from pipeconform.ranks.flight import SIZE
from pipeconform.ranks.frames import frames_of
from pipeconform.ranks.output_tail import shortened
from pipeconform.ranks.pins import pin
from pipeconform.ranks.verdict import Cause, Raised
from pipeconform.ranks.wire import HEADER, Address, Kind, RankSpec, frame

__all__ = ["BOUND", "RankContext", "main", "raised_from"]

BOUND = "PIPECONFORM_DEVICE_ID"
"""If it is 1, ranks give ``init_process_group`` their device: a group's communicator is then made with the group."""

_TEXT_LIMIT = 64 * 1024  # characters of a message or traceback that cross the wire
_MAX_CAUSES = 32
_OUTPUT_LIMIT = 4096  # bytes of what was printed that cross the wire

Task = Callable[["RankContext", bytes], object]


@dataclass(frozen=True)
class RankContext:
    """What a task knows about where it runs; ``device`` is a torch device string."""

    rank: int
    world_size: int
    device: str
    folder: str = ""
    """A temporary folder of the rank group, removed with its processes."""


def main(connection: socket.socket, spec: RankSpec) -> int:
    """Run rank ``spec.rank``; return the process's exit code when the controller is gone."""
    examiner.prepare()
    output = _redirect_output(spec.output)
    _dump_stacks_to(spec.stacks)
    context = RankContext(
        rank=spec.rank, world_size=spec.world_size, device=spec.device, folder=os.path.dirname(spec.output)
    )
    if spec.backend is not None:  # other processes run no task of the implementation's
        debugger.install(spec.rank, folder=context.folder)
    stream = connection.makefile("rb")
    _let_threads_finish()
    try:
        pinned = _prepare(spec, connection, stream)
        examiner.answer_questions(spec.standing, begin=lambda: _use(spec.device))
        seen = {**pinned, **{name: os.environ.get(name) for name in spec.variables}}
        _answer(connection, 0, kind=Kind.READY, body=msgspec.msgpack.encode(seen))
    except NotConnectedError as error:
        _answer(connection, 0, kind=Kind.UNFIT, body=_clip(str(error)).encode())
        return 1
    except Exception:
        _answer(connection, 0, kind=Kind.UNFIT, body=_clip(traceback.format_exc()).encode())
        return 1
    with stream:
        _serve(connection, stream, context, output=output)
    return 0


def _let_threads_finish() -> None:
    """Keep threads of this process from taking the core from one another when they wake up.

    If a gloo thread receives a message while the thread that it woke holds the connection's lock, it tries to take the
    lock again and again. If it took that thread's core, it does so until its time slice is over: a third of a run's
    time in the kernel, if there are more ranks than cores.
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # without permission everything works, but slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _serve(
    connection: socket.socket, stream: io.BufferedReader, context: RankContext, *, output: int
) -> None:
    tasks: dict[str, Task] = {}
    name = ""
    while (received := _read_frame(stream)) is not None:
        number, kind, body = received
        if kind == Kind.NAME:
            name = body.decode()
            continue
        _forget(output)
        del received
        answer_kind, answer = _run(tasks, name, context, body, output=output)
        del body
        _flush()
        _answer(connection, number, kind=answer_kind, body=answer)
        del answer  # a large value must not live until the next task


def _run(
    tasks: dict[str, Task], name: str, context: RankContext, payload: bytes, *, output: int
) -> tuple[Kind, bytes]:
    try:
        if name not in tasks:
            tasks[name] = _find(name)
        value = tasks[name](context, payload)
        if type(value) is not bytes:
            raise TypeError(f"{name} returned {_kind(value)}; a task returns bytes")
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: a task must answer
        debugger.post_mortem(error)
        raised = msgspec.structs.replace(raised_from(error), output=_printed(output))
        raised = _without(context.folder, raised)
        return Kind.RAISED, msgspec.msgpack.encode(raised)
    else:
        return Kind.BYTES, value


def _find(name: str) -> Task:
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]  # a wrong type shows when it is called


def _kind(value: object) -> str:
    return f"a value of type {type(value).__module__}.{type(value).__qualname__}"


def raised_from(error: BaseException) -> Raised:
    """The verdict on an exception, its causes included."""
    # The first frame is the harness's and says nothing about the task.
    own = error.__traceback__
    frames = own.tb_next if own is not None and own.tb_next is not None else own
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception as failure:
        text = f"(no traceback: formatting it raised {type(failure).__name__})"
    try:
        places = frames_of(error, _root(error))
    except Exception:  # what an exception holds may be anything
        places = ()
    return Raised(
        type=_name(error),
        message=_clip(_message(error)),
        traceback=_clip(text),
        causes=_causes(error),
        frames=places,
        bases=tuple(map(_name_of, type(error).__mro__[1:-2])),
    )


def _without(folder: str, raised: Raised) -> Raised:
    """The same, with the name of a temporary folder left out: the next execution has another one."""
    if not folder:
        return raised

    def told(message: str) -> str:
        return message.replace(folder, "<folder>")

    causes = tuple(msgspec.structs.replace(one, message=told(one.message)) for one in raised.causes)
    return msgspec.structs.replace(raised, message=told(raised.message), causes=causes)


def _root(error: BaseException) -> BaseException:
    """The last of its causes."""
    return _chain(error)[-1]


def _causes(error: BaseException) -> tuple[Cause, ...]:
    return tuple(Cause(type=_name(link), message=_clip(_message(link))) for link in _chain(error)[1:])


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes; a chain that leads back to itself ends there."""
    links = [error]
    while (link := _cause(links[-1])) is not None and len(links) <= _MAX_CAUSES:
        if any(link is one for one in links):
            break
        links.append(link)
    return links


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    collected = _collected(error)
    return collected or (None if error.__suppress_context__ else error.__context__)


def _collected(error: BaseException) -> BaseException | None:
    """The first of what ranks raised, where an exception has collected that.

    As `torch.distributed.checkpoint` does: all ranks raise one `CheckpointException`, whose ``failures`` have, by rank,
    an exception and its stack.
    """
    try:
        failures = error.failures  # type: ignore[attr-defined]  # of no class in common
        first = failures[min(failures)][0]
    except Exception:  # most have none, and what an exception holds may be anything
        return None
    return first if isinstance(first, BaseException) else None


def _name(error: BaseException) -> str:
    return _name_of(type(error))


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"(no message: str() of the exception raised {type(failure).__name__})"


def _clip(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # lone surrogates cannot cross as UTF-8
    if len(text) <= _TEXT_LIMIT:
        return text
    half = _TEXT_LIMIT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _read_frame(stream: io.BufferedReader) -> tuple[int, int, bytes] | None:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    number, _, kind, length = HEADER.unpack(header)
    body = stream.read(length)
    return (number, kind, body) if len(body) == length else None


def _answer(connection: socket.socket, number: int, *, kind: Kind, body: bytes) -> None:
    header = frame(number, kind=kind, length=len(body))
    if len(body) < 1 << 16:
        connection.sendall(header + body)
    else:
        connection.sendall(header)
        connection.sendall(body)


def _redirect_output(path: str) -> int:
    # Appending, so that the controller can truncate the file while the process keeps printing.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    return descriptor  # a task may close 1 and open another file under that number


def _forget(output: int) -> None:
    with contextlib.suppress(OSError):  # a task may have closed it
        if os.fstat(output).st_size:
            os.ftruncate(output, 0)


def _printed(output: int) -> str:
    """The end of what this process has printed in its task."""
    _flush()
    try:
        start = max(0, os.fstat(output).st_size - _OUTPUT_LIMIT)
        return shortened(os.pread(output, _OUTPUT_LIMIT, start).decode(errors="replace"), limit=_OUTPUT_LIMIT)
    except OSError:  # a task may have closed it
        return ""


def _flush() -> None:
    with contextlib.suppress(Exception):  # a task may have closed or replaced it
        sys.stdout.flush()


def _dump_stacks_to(path: str) -> None:
    # The descriptor stays open for the life of the process: faulthandler writes to it from a signal handler.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=descriptor, all_threads=True)
    faulthandler.enable(file=2)


def _prepare(spec: RankSpec, connection: socket.socket, stream: io.BufferedReader) -> dict[str, str]:
    """Set the process up; return what was pinned for its device."""
    if spec.backend is None and spec.device == "cpu" and "torch" not in sys.modules:
        return {}  # the ranks do not use torch; importing it takes longer than all the rest
    import torch  # preloaded in the server; this module is also imported without it

    torch.set_num_threads(1)
    device = torch.device(spec.device)
    pinned = pin(device.type)
    if device.type != "cpu":
        wait_asleep(device.type, device.index or 0)
        _use(spec.device)
    if spec.backend is None:
        return pinned
    import torch.distributed as dist

    if backend_for(spec.backend, device.type) == "nccl":
        # only torch's flight recorder knows what an NCCL kernel waits for (`flight`)
        os.environ.setdefault(SIZE, "2000")
    bound = device if device.type != "cpu" and os.environ.get(BOUND) == "1" else None
    if bound is not None:
        pinned["init_process_group(device_id)"] = str(bound)
    dist.init_process_group(
        spec.backend,
        store=_store(spec, connection, stream),
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=timedelta(seconds=spec.group_timeout),
        device_id=bound,
    )
    if device.type != "cpu":
        connect(device, backend=spec.backend)
    return pinned


def _use(device: str) -> None:
    """Make a device the calling thread's; a new thread's is the first one, which is another rank's."""
    if device != "cpu":
        import torch

        torch.accelerator.set_device_index(torch.device(device).index or 0)


def _store(spec: RankSpec, connection: socket.socket, stream: io.BufferedReader) -> Any:
    """Where the ranks meet: a file, or an address of rank 0's that the controller passes on."""
    import torch.distributed as dist

    if not spec.listen:
        return dist.FileStore(spec.store, spec.world_size)  # type: ignore[attr-defined]  # public, says its page
    patience = timedelta(seconds=spec.group_timeout)
    if spec.rank == 0:
        # our own socket: torch's would listen on every interface
        family = socket.AF_INET6 if ":" in spec.listen else socket.AF_INET
        listener = socket.create_server((spec.listen, 0), family=family)
        address = Address(host=spec.listen, port=listener.getsockname()[1])
        store = dist.TCPStore(  # type: ignore[attr-defined]  # public, says its page
            address.host,
            address.port,
            spec.world_size,
            is_master=True,
            timeout=patience,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        _answer(connection, 0, kind=Kind.STORE, body=msgspec.msgpack.encode(address))
        return store
    received = _read_frame(stream)
    if received is None:
        sys.exit(0)  # the controller is gone
    address = msgspec.msgpack.decode(received[2], type=Address)
    return dist.TCPStore(  # type: ignore[attr-defined]  # public, says its page
        address.host,
        address.port,
        spec.world_size,
        is_master=False,
        timeout=patience,
        wait_for_workers=False,
    )
