"""A thread on a rank that reports what the rank is doing, even while the task is blocked in native code.

The controller asks with a signal that all other threads have blocked, so that nothing is interrupted, and the
answer is a file. The operation that blocks the rank comes from a recorder of its communication if one
runs (`recorded_by`), and otherwise from the frames of ``torch.distributed``'s own functions.

Frames are read only if the task is asleep in native code, and without interruption. Reading those of a running thread
ended the process now and then: under CPython 3.11 with torch, asked a thousand times a second, a rank died of SIGSEGV
within seconds, during that look or in the next garbage collection.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

import msgspec

from pipeconform.ranks.devices import backends_in
from pipeconform.ranks.flight import Flight, flights_of_this_rank
from pipeconform.ranks.operations import Operation, Pending
from pipeconform.ranks.standing import Standing, Wait

__all__ = [
    "QUESTION",
    "Purpose",
    "Recorded",
    "answer_questions",
    "keeping",
    "prepare",
    "recorded_by",
    "telling",
    "waiting_for_others",
]

QUESTION = signal.SIGUSR2
_OWN = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a failing thread sends to itself; blocked, they would end the process without a trace of where."""
_MOMENT, _MOMENTS = 0.02, 8  # seconds, and how many such moments a busy rank is waited for
_LITTLE = 2_000_000  # nanoseconds of processor time in such a moment
_TURN = 0.25  # seconds for which a look at frames cannot be interrupted; it takes less than one thousandth
_LONG = 300.0  # seconds, far beyond the time limit of any case
_COUNTS = 4096  # with more operations than this, counting would take the task's time


class Purpose(Protocol):
    """What an operation is for, as far as its recorder knows."""

    @property
    def words(self) -> str:
        """Added to the operation in parentheses."""

    @property
    def stage(self) -> int | None:
        """The stage of this rank that it is for."""

    @property
    def microbatch(self) -> int | None:
        """The microbatch that is due."""


class Recorded(Protocol):
    """A recorder of this rank's communication, which any thread may read."""

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations that have been issued."""

    @property
    def groups(self) -> Mapping[str, tuple[int, ...]]:
        """The members of every group that was used, as ranks of the world."""

    def pending(self) -> tuple[Pending, ...]:
        """Operations that have not been waited for to the end; the one that blocks comes first."""

    def ordered(self) -> tuple[Operation, ...]:
        """Operations that only a device's stream waits for; what the stream waits for now comes first."""

    def purpose(self, operation: Operation) -> Purpose | None:
        """What an operation is for; None if that is unknown."""


_own_waits: list[str] = []
_tellers: list[Callable[[], str]] = []
_frame_readers: list[Callable[[FrameType], str]] = []
_recorders: list[Recorded] = []
_keepers: list[Callable[[], object]] = []


def prepare() -> None:
    """Block the signal in this thread and all that it starts; call this before any other thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {QUESTION})


def answer_questions(path: str, *, begin: Callable[[], None] | None = None) -> None:
    """Start the thread that writes a `Standing` to `path` whenever the controller asks; it calls `begin` first."""
    threading.Thread(target=_answer, args=(path, begin), name="examiner", daemon=True).start()


@contextmanager
def telling(
    teller: Callable[[], str], *, of_frame: Callable[[FrameType], str] | None = None
) -> Iterator[None]:
    """Let `teller` say what the task is doing, and `of_frame` explain frames of its stack.

    Both are called in another thread; an empty text means that they know nothing.
    """
    readers = [] if of_frame is None else [of_frame]
    _tellers.append(teller)
    _frame_readers.extend(readers)
    try:
        yield
    finally:
        _tellers.remove(teller)
        for reader in readers:
            _frame_readers.remove(reader)


@contextmanager
def waiting_for_others(words: str) -> Iterator[None]:
    """Say that the task waits for other ranks in code of its own, which is not what it tests.

    What it waits for may be about to end by itself, as an operation does whose connection this rank has closed: a proof
    that ranks are deadlocked takes longer then (`pipeconform.ranks.standing`).
    """
    _own_waits.append(words)
    try:
        with telling(lambda: words):
            yield
    finally:
        _own_waits.remove(words)


@contextmanager
def keeping(keep: Callable[[], object]) -> Iterator[None]:
    """Call `keep`, in another thread, after each answer: a process that is asked may be killed next."""
    _keepers.append(keep)
    try:
        yield
    finally:
        _keepers.remove(keep)


@contextmanager
def recorded_by(recorder: Recorded) -> Iterator[None]:
    """Take the operation that blocks the task from `recorder`."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.remove(recorder)


def _answer(path: str, begin: Callable[[], None] | None) -> None:
    # other signals to the process must go to the task's threads, above all the request for their stacks
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN)
    if begin is not None:
        begin()
    while True:
        signal.sigwait({QUESTION})
        with contextlib.suppress(Exception):  # a rank that cannot answer must not end because of it
            began = time.monotonic()
            standing = _with_flights(_standing())
            standing = msgspec.structs.replace(standing, began=began, ended=time.monotonic())
            body = msgspec.json.encode(standing)
            with open(f"{path}.part", "wb") as part:
                part.write(body)
            os.replace(f"{path}.part", path)
        for keep in tuple(_keepers):
            with contextlib.suppress(Exception):
                keep()


def _standing() -> Standing:
    # which other threads there are, without a look at any frame
    others = sys._current_exceptions().keys() - {threading.main_thread().ident, threading.get_ident()}
    if not _main_sleeps():
        return _told((), alone=not others)
    with _undisturbed():
        frames = sys._current_frames()
        stack = tuple(_stack(frames.get(threading.main_thread().ident or 0)))
        # autograd's threads for devices do what the main thread gives them, which sleeps
        idle = not others & frames.keys() and len(others) <= _num_autograd_threads()
        return _told(stack, alone=not others or idle)


def _num_autograd_threads() -> int:
    """How many threads autograd has started for devices; none where there is only the CPU."""
    found = 0
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{name}/comm") as file:
            found += file.read().startswith("pt_autograd")
    return found


def _main_sleeps() -> bool:
    """Whether the main thread is asleep, and has been for a moment except for short wake-ups.

    Some waits wake up now and then, and a signal for stacks interrupts a sleep: one moment of several is enough.
    """
    before = _main_ran()
    for _ in range(_MOMENTS):
        time.sleep(_MOMENT)
        after = _main_ran()
        if before is not None and after is not None and after - before < _LITTLE:
            return True
        before = after
    return False


def _main_ran() -> int | None:
    """The nanoseconds that the main thread has run, if it is asleep; None if it runs, or if /proc does not say."""
    task = f"/proc/self/task/{os.getpid()}"  # after a fork, CPython 3.11 knows the parent's number
    try:
        with open(f"{task}/stat") as file:
            asleep = file.read().rpartition(")")[2].split()[0] == "S"
        with open(f"{task}/schedstat") as file:
            return int(file.read().split()[0]) if asleep else None
    except (OSError, IndexError, ValueError):
        return None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no other thread run Python, and collect no garbage; a thread that wakes up meanwhile waits for the end."""
    interval, collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(_TURN)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        sys.setswitchinterval(interval)


def _told(stack: Sequence[FrameType], *, alone: bool) -> Standing:
    doing = ", ".join(text for text in [*(teller() for teller in _tellers), _within(stack)] if text)
    recorders = list(_recorders)
    if not recorders:
        found = Standing(doing=doing, wait=_called(stack), alone=alone)
    else:
        rows = (row for recorder in recorders for row in recorder.pending())
        blocked = next((row for row in rows if row.blocks), None)
        found = _recorded(recorders[-1], blocked, stack, doing, alone)
    return msgspec.structs.replace(found, in_harness=bool(_own_waits))


def _with_flights(standing: Standing) -> Standing:
    """The standing with the backend's unfinished operations: all that is known of a rank that waits outside Python."""
    if "torch" not in sys.modules:
        return standing
    flights: tuple[Flight, ...] = ()
    with contextlib.suppress(Exception):  # another version of torch must not hide the rest
        flights = flights_of_this_rank()
    if not flights:
        return standing
    wait = standing.wait or Wait(words=str(flights[0]), peers=flights[0].peers)
    return msgspec.structs.replace(standing, wait=wait, flights=flights)


def _recorded(
    recorder: Recorded, blocked: Pending | None, stack: Sequence[FrameType], doing: str, alone: bool
) -> Standing:
    """The standing of a rank whose communication is recorded."""
    operations, groups = tuple(recorder.operations), dict(recorder.groups)
    if blocked is None and stack and _called(stack) is None and (ordered := recorder.ordered()):
        # the task sleeps, and may sleep for another reason: this is the likely one, and proves nothing
        likely = msgspec.structs.replace(_wait(recorder, ordered[0], (), groups, stack), number=-1)
        return Standing(doing=doing, wait=likely, recorded=True, alone=alone)
    if len(operations) > _COUNTS:
        wait = None if blocked is None else _wait(recorder, blocked.operation, (), groups, stack)
        return Standing(doing=doing, wait=wait, since=0.0 if blocked is None else blocked.since)
    transfers = Counter(
        (one.name, one.group, one.process, one.tag) for one in operations if one.kind != "collective"
    )
    collectives = Counter(one.group for one in operations if one.kind == "collective")
    return Standing(
        doing=doing,
        wait=_called(stack)
        if blocked is None
        else _wait(recorder, blocked.operation, operations, groups, stack),
        since=0.0 if blocked is None else blocked.since,
        recorded=True,
        alone=alone,
        transfers=tuple((*key, count) for key, count in transfers.items()),
        collectives=tuple(collectives.items()),
        any_source=any(one.name == "recv_any_source_" for one in operations),
    )


def _wait(
    recorder: Recorded,
    operation: Operation,
    operations: Sequence[Operation],
    groups: Mapping[str, tuple[int, ...]],
    stack: Sequence[FrameType],
) -> Wait:
    members = groups.get(operation.group, ())
    own = _own_rank()
    peers = (operation.process,) if operation.process >= 0 else tuple(r for r in members if r != own)
    of_peer = [
        one
        for one in operations
        if one.number <= operation.number
        and (one.kind, one.group) == (operation.kind, operation.group)
        and (one.kind == "collective" or one.process == operation.process)
    ]
    alike = [one for one in of_peer if one.kind == "collective" or one.tag == operation.tag]
    gloo = backends_in(_backend()) == {"gloo"}
    words = "barrier" if operation.name == "barrier" else str(operation).rpartition(", operation")[0]
    purpose = recorder.purpose(operation)
    return Wait(
        words=words if purpose is None else f"{words} ({purpose.words})",
        stage=None if purpose is None else purpose.stage,
        microbatch=None if purpose is None else purpose.microbatch,
        peers=peers,
        number=operation.number,
        name=operation.name,
        group=operation.group,
        tag=operation.tag,
        nth=len(alike),
        nth_of_peer=0 if gloo else len(of_peer),
        rendezvous=gloo,
        timed=any(_is_timed(frame) for frame in stack) or _ends_by_itself(operation.group),
    )


def _is_timed(frame: FrameType) -> bool:
    """Whether this is a wait with a time limit of its own."""
    seen = frame.f_locals
    return frame.f_code.co_name == "waited" and bool(seen.get("arguments") or seen.get("named"))


def _ends_by_itself(group: str) -> bool:
    """Whether a group's waits time out so soon that one of them may end during the examination."""
    from torch.distributed import distributed_c10d as c10d

    found = c10d._resolve_process_group(c10d.GroupName(group))  # type: ignore[attr-defined]  # not exported
    backends = [found._get_backend(device) for device in found._device_types]
    options = [_options_of(getattr(one, "wrapped_pg", one)) for one in backends]  # DETAIL wraps
    return any(one is not None and one._timeout.total_seconds() < _LONG for one in options)


def _options_of(backend: Any) -> Any:
    try:
        return getattr(backend, "options", None)
    except RuntimeError:  # since torch 2.15 of a vendor's backend that has none
        return None


def _called(stack: Sequence[FrameType]) -> Wait | None:
    """The function of ``torch.distributed`` that the task is in, from its frame."""
    for frame in stack:
        if not frame.f_code.co_filename.endswith("distributed_c10d.py"):
            continue
        name, seen = frame.f_code.co_name, frame.f_locals
        if name.startswith("_") or "group" not in seen:
            continue
        import torch.distributed as dist

        group = seen["group"] or dist.group.WORLD
        members = dist.get_process_group_ranks(group)
        side = next((side for side in ("src", "dst") if name in ("recv", "send") and side in seen), None)
        if side is None:
            return Wait(words=name, peers=tuple(r for r in members if r != _own_rank()))
        inside, outside = seen.get(f"group_{side}"), seen[side]
        peer = members[inside] if inside is not None else outside
        what = "receive" if name == "recv" else "send"
        if peer is None:
            return Wait(words=f"{what} from any rank", peers=tuple(r for r in members if r != _own_rank()))
        return Wait(words=f"{what} {'from' if name == 'recv' else 'to'} rank {peer}", peers=(peer,))
    return None


def _within(stack: Sequence[FrameType]) -> str:
    """What the task is inside of, from the innermost frame that can be explained."""
    for frame in stack:
        for reader in tuple(_frame_readers):
            if text := reader(frame):
                return text
        if frame.f_code.co_name == "_engine_run_backward":
            return "inside a backward"
    return ""


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost frame outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _backend() -> str:
    import torch.distributed as dist

    return dist.get_backend() if dist.is_initialized() else ""


def _own_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else -1
