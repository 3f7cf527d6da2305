"""Records the communication of one rank, and which operations are pending.

While a `Recorder` records, the examiner can say which operation a rank is blocked in, and prove deadlocks.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from pipeconform.ranks import examiner
from pipeconform.ranks.operations import Layout, Moment, Operation, Pending
from pipeconform.ranks.recording.kernels import Call, listening, tensors_in

__all__ = ["Companion", "Recorder", "our_own", "pending"]

_KINDS: dict[str, Literal["send", "receive", "collective"]] = {
    "send": "send",
    "recv_": "receive",
    "recv_any_source_": "receive",
}
_FRAMES_TO_BATCH = 8  # from our kernel up to batch_isend_irecv there are three or four


class Companion(Protocol):
    """Looks at the tensors of operations while they are recorded."""

    def issued(
        self, operation: Operation, arguments: tuple[Any, ...], tensors: Sequence[torch.Tensor], *, ours: bool
    ) -> tuple[tuple[Any, ...], Any]:
        """An operation begins: return the arguments to run it with, and what to keep until it ends.

        `ours` says that the harness itself communicates (`our_own`).
        """

    def on_its_way(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        """The operator has returned: its message is on its way."""

    def ended(self, operation: Operation, kept: Any) -> None:
        """The operation was waited for to the end."""

    def purpose(self, operation: Operation) -> examiner.Purpose | None:
        """What an operation is for; None if unknown. Thread-safe."""


class _Open:
    """An operation that has not been waited for; `kept` belongs to the companion."""

    __slots__ = ("blocks", "kept", "operation", "since", "storages")

    def __init__(self, operation: Operation, tensors: Sequence[torch.Tensor], kept: Any) -> None:
        self.operation, self.kept = operation, kept
        self.storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        self.since, self.blocks = time.monotonic(), False


class Recorder:
    """Records within `recording`; any thread may call `pending`, also while another is blocked in a wait."""

    def __init__(self, companion: Companion | None = None) -> None:
        self.step = -1
        """The step of the operations that are issued from now on."""
        self.used: set[str] = set()
        """Names of the groups on which anything but `our_own` was communicated."""
        self.groups: dict[str, tuple[int, ...]] = {}
        """The members of every group that was used, as ranks of the world in the group's order."""
        self.operations: list[Operation] = []
        self.moments: list[Moment] = []
        self._companion = companion
        self._ours = False
        self._lock = threading.Lock()
        self._open: dict[dist.Work, _Open] = {}  # a work object found here again is the same Python object
        self._inside: _Open | None = None  # an operation whose call itself blocks
        self._batches = 0
        self._batch_frame: FrameType | None = None
        self._batch_depth = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record everything that this process communicates, in all threads, for the examiner."""
        _recording().append(self)
        try:
            with listening(self), examiner.recorded_by(self):
                yield
        finally:
            self._batch_frame = None
            _recording().remove(self)

    def let_go(self) -> None:
        """Forget operations that were never waited for: they keep their group's connections open."""
        self._open.clear()
        self._batch_frame = None

    def open(self) -> Iterator[tuple[Operation, Any]]:
        """The operations not waited for to the end, each with what the companion keeps."""
        for one in self._open.values():
            yield one.operation, one.kept

    def pending(self) -> tuple[Pending, ...]:
        """The operations not waited for to the end, in order of issue; the one that blocks comes first."""
        inside = self._inside
        found = [*list(self._open.values()), *([] if inside is None else [inside])]
        rows = [Pending(one.operation, one.since, one.blocks) for one in found]
        return tuple(sorted(rows, key=lambda row: (not row.blocks, row.operation.number)))

    def purpose(self, operation: Operation) -> examiner.Purpose | None:
        """What one of the operations is for; None if unknown."""
        return None if self._companion is None else self._companion.purpose(operation)

    # The calls of `kernels.Listener`.

    def called(self, call: Call) -> Any:
        """Note the operation, run it and remember its work object."""
        tensors = tensors_in(call.arguments)
        operation = self._note(call, tensors)
        companion, arguments, kept = self._companion, call.arguments, None
        if companion is not None:
            arguments, kept = companion.issued(operation, arguments, tensors, ours=self._ours)
        opened = _Open(operation, tensors, kept)
        opened.blocks, self._inside = True, opened
        try:
            result = call.run(arguments)
        finally:
            opened.blocks, self._inside = False, None
        if companion is not None:
            companion.on_its_way(operation, tensors)
        work = _work_in(result)
        if work is None:
            self._end(opened)  # it has no work object: the call was the wait
        else:
            self._open[work] = opened
        return result

    def batched(self, run: Callable[[], Any]) -> Any:
        """Count what runs as one batch."""
        with self._lock:
            self._batches += 1
        self._batch_depth += 1
        try:
            return run()
        finally:
            self._batch_depth -= 1

    def waited(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Wait, and end the operation."""
        opened = self._open.get(work)
        if opened is None:
            return wait()
        return self._wait(work, opened, wait)

    def polled(self, work: dist.Work, complete: bool) -> None:
        """End an operation that the caller has seen to be complete: it need not wait for it."""
        opened = self._open.get(work)
        if complete and opened is not None:
            self._end(opened)
            del self._open[work]

    def waited_for_tensors(self, tensors: Sequence[torch.Tensor], wait: Callable[[], Any]) -> Any:
        """Wait, and end the first operation on each tensor's memory."""
        found: dict[dist.Work, _Open] = {}
        for storage in (tensor.untyped_storage()._cdata for tensor in tensors):
            for work, opened in list(self._open.items()):
                if storage in opened.storages:
                    found[work] = opened
                    break
        if not found:
            return wait()
        (first, *others) = found.items()
        result = self._wait(*first, wait)
        for work, opened in others:
            self._end(opened)
            self._open.pop(work, None)
        return result

    def _wait(self, work: dist.Work, opened: _Open, wait: Callable[[], Any]) -> Any:
        self._batch_frame = None
        opened.since, opened.blocks = time.monotonic(), True
        try:
            result = wait()
        finally:
            opened.blocks = False
        self._end(opened)
        self._open.pop(work, None)
        return result

    def _end(self, opened: _Open) -> None:
        self.moments.append(Moment("wait", opened.operation.number))
        if self._companion is not None:
            self._companion.ended(opened.operation, opened.kept)

    def _note(self, call: Call, tensors: Sequence[torch.Tensor]) -> Operation:
        name = call.group.group_name
        if name not in self.groups:
            self.groups[name] = tuple(dist.get_process_group_ranks(call.group))
        if not self._ours:
            self.used.add(name)
        members, kind = self.groups[name], _KINDS.get(call.name, "collective")
        batch = self._batch()
        with self._lock:
            operation = Operation(
                number=len(self.operations),
                kind=kind,
                name=call.name,
                group=name,
                peer=call.peer,
                process=members[call.peer] if 0 <= call.peer < len(members) else -1,
                tag=call.tag,
                tensors=tuple(map(_layout_of, tensors)),
                num_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
                batch=batch,
                step=self.step,
            )
            self.operations.append(operation)
            self.moments.append(Moment("issue", operation.number))
        return operation

    def _batch(self) -> int:
        """The number of the batch that is being issued: that of the call of ``batch_isend_irecv`` above us."""
        if self._batch_depth:
            return self._batches - 1
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES_TO_BATCH):
            if frame is None or frame.f_code is _BATCH_CODE:
                break
            frame = frame.f_back
        else:
            frame = None
        if frame is None:
            self._batch_frame = None
            return -1
        if frame is not self._batch_frame:  # kept alive here, so that no other frame takes its place
            self._batch_frame = frame
            with self._lock:
                self._batches += 1
        return self._batches - 1


@contextmanager
def our_own() -> Iterator[None]:
    """Leave communication within the context out of `Recorder.used`: it is the harness's own."""
    recorders = list(_recording())
    for recorder in recorders:
        recorder._ours = True
    try:
        yield
    finally:
        for recorder in recorders:
            recorder._ours = False


def pending() -> tuple[Pending, ...]:
    """The pending operations of this process; empty if nothing is recorded. Thread-safe."""
    return tuple(one for recorder in list(_recording()) for one in recorder.pending())


@functools.cache
def _recording() -> list[Recorder]:
    """The recorders of this process that record now."""
    return []


def _work_in(result: Any) -> dist.Work | None:
    """The work object among what an operator returned."""
    last = result[-1] if isinstance(result, tuple | list) and result else result
    return dist.Work.unbox(last) if isinstance(last, torch.ScriptObject) else None


def _layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


_BATCH_CODE = inspect.unwrap(dist.batch_isend_irecv).__code__
