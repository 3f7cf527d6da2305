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
from pipeconform.ranks.recording.device_waits import Ordered, holding
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

    __slots__ = ("blocks", "device", "kept", "operation", "since", "storages")

    def __init__(self, operation: Operation, tensors: Sequence[torch.Tensor], kept: Any) -> None:
        self.operation, self.kept = operation, kept
        self.storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        self.device = None if not tensors or tensors[0].is_cpu else tensors[0].device
        self.since, self.blocks = time.monotonic(), False


class _Coalescing:
    """The operations that a group has been given since it began to coalesce: one batch."""

    __slots__ = ("number", "opened")

    def __init__(self, number: int) -> None:
        self.number = number
        self.opened: list[_Open] = []


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
        self._open: dict[_Open, None] = {}  # in order of issue
        # a work object found here again is the same Python object; that of a batch stands for several operations
        self._works: dict[dist.Work, tuple[_Open, ...]] = {}
        self._coalescing: dict[str, _Coalescing] = {}  # by group
        self._inside: _Open | None = None  # an operation whose call itself blocks
        self._ordered: Ordered[Operation] = Ordered()
        self._batches = 0
        self._batch_frame: FrameType | None = None
        self._batch_depth = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record everything that this process communicates, in all threads, for the examiner."""
        _recording().append(self)
        try:
            with listening(self), holding(self), examiner.recorded_by(self):
                yield
        finally:
            self._batch_frame = None
            _recording().remove(self)

    def let_go(self) -> None:
        """Forget operations that were never waited for: they keep their group's connections open."""
        self._open.clear()
        self._works.clear()
        self._coalescing.clear()
        self._ordered.clear()
        self._batch_frame = None

    def open(self) -> Iterator[tuple[Operation, Any]]:
        """The operations not waited for to the end, each with what the companion keeps."""
        for one in list(self._open):
            yield one.operation, one.kept

    def pending(self) -> tuple[Pending, ...]:
        """The operations not waited for to the end, in order of issue; the one that blocks comes first.

        One that blocks may be an operation that only a device's stream waits for, if this rank waits for the stream.
        """
        inside = self._inside
        found = [*list(self._open), *([] if inside is None else [inside])]
        rows = [Pending(one.operation, one.since, one.blocks) for one in found]
        on_device = self._ordered.blocking()
        if on_device is not None:
            rows.append(Pending(*on_device, blocks=True))
        return tuple(sorted(rows, key=lambda row: (not row.blocks, row.operation.number)))

    def ordered(self) -> tuple[Operation, ...]:
        """The operations that streams of a device have been made to wait for, and have not come past; first to last."""
        return self._ordered.waiting()

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
        work, together = _work_in(result), self._coalescing.get(operation.group)
        self._open[opened] = None
        if together is not None:
            together.opened.append(opened)
        if work is not None:
            self._works[work] = (opened,)
        elif together is None and not self._batch_depth:
            self._end(opened)  # it has no work object: the call was the wait
        return result

    def batched(self, run: Callable[[], Any]) -> Any:
        """Count what runs as one batch.

        Its operations may have no work objects, if torch lets the backend coalesce them: their tensors are waited for.
        """
        self._new_batch()
        self._batch_depth += 1
        try:
            return run()
        finally:
            self._batch_depth -= 1

    def coalescing(self, group: dist.ProcessGroup) -> None:
        """Count what `group` is given from now on as one batch, whose work object comes at its end."""
        self._coalescing[group.group_name] = _Coalescing(self._new_batch())

    def coalesced(self, group: dist.ProcessGroup, work: dist.Work | None) -> None:
        """A wait for `work` ends all that `group` was given since `coalescing`; without it the call was the wait."""
        together = self._coalescing.pop(group.group_name, None)
        if together is None:
            return  # it began before the recorder did
        if work is not None:
            self._works[work] = tuple(together.opened)
            return
        for opened in together.opened:
            self._end(opened)

    def waited(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Wait, and end the operations that the work object stands for."""
        opened = self._works.get(work)
        if opened is None:
            return wait()
        result = self._wait(opened, wait)
        self._works.pop(work, None)
        return result

    def synchronised(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Let the device's stream wait. Without a device this is no wait: gloo's does nothing."""
        opened = self._works.get(work, ())
        if all(one.device is None for one in opened):
            return wait()
        return self.waited(work, wait)

    def polled(self, work: dist.Work, complete: bool) -> None:
        """End operations that the caller has seen to be complete: it need not wait for them."""
        if complete:
            for opened in self._works.pop(work, ()):
                self._end(opened)

    def waited_for_tensors(self, tensors: Sequence[torch.Tensor], wait: Callable[[], Any]) -> Any:
        """Wait, and end the first operation on each tensor's memory."""
        found: dict[_Open, None] = {}
        for storage in (tensor.untyped_storage()._cdata for tensor in tensors):
            first = next((one for one in list(self._open) if storage in one.storages), None)
            if first is not None:
                found[first] = None
        return self._wait(tuple(found), wait) if found else wait()

    # The call of `device_waits.Holder`.

    def held(self, run: Callable[[], Any], *, stream: int | None) -> Any:
        """Run what waits for a stream of the device, or for all: the rank waits for what the stream waits for."""
        return self._ordered.hold(run, stream=stream)

    def _wait(self, opened: Sequence[_Open], wait: Callable[[], Any]) -> Any:
        self._batch_frame = None
        # of a batch a receive: a send may end by itself
        left = sorted(
            (one for one in opened if one in self._open), key=lambda one: one.operation.kind == "send"
        )
        blocking = left[0] if left else None
        if blocking is not None:
            blocking.since, blocking.blocks = time.monotonic(), True
        try:
            result = wait()
        finally:
            if blocking is not None:
                blocking.blocks = False
        if blocking is not None and blocking.device is not None:
            self._ordered.add([one.operation for one in left], device=blocking.device)
        for one in opened:
            self._end(one)
        return result

    def _end(self, opened: _Open) -> None:
        if opened not in self._open:
            return  # it ended by its own work object before that of its batch was waited for
        del self._open[opened]
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
        together = self._coalescing.get(name)
        batch = self._batch() if together is None else together.number
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
            self._new_batch()
        return self._batches - 1

    def _new_batch(self) -> int:
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
