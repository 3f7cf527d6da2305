"""Recording the communication of one rank, and what of it is pending."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist

from pipeconform.observe.traffic.buffers import Received, Sent
from pipeconform.observe.traffic.cargo import CargoFinder
from pipeconform.observe.traffic.contents import ContentFinder
from pipeconform.observe.traffic.due import Due, Neighbours, due
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.operations import Layout, Moment, Operation, Pending
from pipeconform.ranks.recording.kernels import Call, listening, tensors_in

__all__ = ["TrafficRecorder", "due_of", "issued", "our_own", "pending"]

_KINDS: dict[str, Literal["send", "receive", "collective"]] = {
    "send": "send",
    "recv_": "receive",
    "recv_any_source_": "receive",
}
_FRAMES_TO_BATCH = 8  # from our kernel up to batch_isend_irecv there are three or four


class _Open:
    """An operation that has not been waited for; `brings` are the tensors in which something may arrive."""

    __slots__ = ("blocks", "brings", "guards", "operation", "since", "storages")

    def __init__(
        self,
        operation: Operation,
        tensors: Sequence[torch.Tensor],
        guards: Sequence[Sent | Received],
        brings: Sequence[torch.Tensor],
    ) -> None:
        self.operation, self.guards, self.brings = operation, guards, brings
        self.storages = [tensor.untyped_storage()._cdata for tensor in tensors]
        self.since, self.blocks = time.monotonic(), False


class TrafficRecorder:
    """Records while `recording`; `given` is the pipeline's group.

    With `guard`, memory in flight is guarded as ``buffers`` says. `pending` may be called by any thread, also
    while another is blocked in a wait.
    """

    def __init__(self, *, given: dist.ProcessGroup | None = None, guard: bool = True) -> None:
        self.step = -1
        self.cargo = CargoFinder()
        """Finds out what operations carry, if the rank's stages report to it."""
        self.contents = ContentFinder(self._unseen)
        """Finds out which inputs came by operations, if the rank's stages report to it and memory is guarded."""
        self.neighbours: Neighbours | None = None
        """Says what is due between this rank and others, where that is known."""
        self.used: set[str] = set()
        """Names of the groups on which anything but `our_own` was communicated."""
        self._ours = False
        self._given = None if given is None else given.group_name
        self._guard = guard
        self._lock = threading.Lock()
        self._operations: list[Operation] = []
        self._moments: list[Moment] = []
        self._overwritten: list[int] = []
        self._groups: dict[str, tuple[int, ...]] = {}
        self._open: dict[dist.Work, _Open] = {}  # a work object found here again is the same Python object
        self._inside: _Open | None = None  # an operation whose call itself blocks
        self._batches = 0
        self._batch_frame: FrameType | None = None
        self._batch_depth = 0

    @contextmanager
    def recording(self) -> Iterator[TrafficRecorder]:
        """Record everything that this process communicates, in all threads, and answer `pending`."""
        _recording().append(self)
        try:
            with listening(self):
                yield self
        finally:
            self._batch_frame = None
            _recording().remove(self)

    def begin(self, step: int) -> None:
        """A step of the program begins, or the time after the last."""
        self.step = step
        self.cargo.begin()
        self.contents.begin(step)

    def passed(self, stage: int, forward: int, inputs: Sequence[Any], output: Any) -> None:
        """A forward of `stage` has ended; it was number `forward` of all that the rank ran in this step."""
        self.cargo.passed(stage, forward, inputs, output)
        if self._guard:
            self.contents.passed(stage, forward, inputs)

    def let_go(self) -> None:
        """Forget what was never waited for, and whom it was for: they keep their group's connections open."""
        self._open.clear()
        self._batch_frame = self.neighbours = None
        self.cargo, self.contents = CargoFinder(), ContentFinder()

    def traffic(self) -> Traffic:
        """What was recorded."""
        for one in self._open.values():
            self._check(one)  # what is never waited for is in flight until the end
        return Traffic(
            groups=dict(self._groups),
            given=self._given,
            default=None if dist.group.WORLD is None else dist.group.WORLD.group_name,
            operations=tuple(self._operations),
            moments=tuple(self._moments),
            overwritten=tuple(self._overwritten),
            cargo=dict(self.cargo.found),
            arrived=tuple(self.contents.found),
        )

    def due(self, operation: Operation) -> Due | None:
        """What one of the operations is for; None where that cannot be told."""
        if self.neighbours is None:
            return None
        before = self._operations[: operation.number]
        return due(self.neighbours, operation, before, dict(self.cargo.found))

    def pending(self) -> tuple[Pending, ...]:
        """What has been issued and not been waited for to the end, in order of issue; what blocks comes first."""
        inside = self._inside
        found = [*list(self._open.values()), *([] if inside is None else [inside])]
        rows = [Pending(one.operation, one.since, one.blocks) for one in found]
        return tuple(sorted(rows, key=lambda row: (not row.blocks, row.operation.number)))

    # What the listener is told, see `kernels.Listener`.

    def called(self, call: Call) -> Any:
        """Note the operation, run it and remember its work object."""
        tensors = tensors_in(call.arguments)
        operation = self._note(call, tensors)
        guards: list[Sent | Received] = []
        arguments = call.arguments
        if self._guard and operation.kind == "send":
            guards = [Sent(tensor) for tensor in tensors]
        elif self._guard and operation.kind == "receive":
            received = [Received(tensor) for tensor in tensors]
            guards, arguments = [*received], ([one.memory for one in received], *call.arguments[1:])
        brings = tensors if self._guard and operation.kind != "send" and not self._ours else ()
        if operation.kind == "collective":
            self.contents.gives(brings)
        opened = _Open(operation, tensors, guards, brings)
        opened.blocks, self._inside = True, opened
        try:
            result = call.run(arguments)
        finally:
            opened.blocks, self._inside = False, None
        # whatever can wait is done when the message is on its way: the other side waits for it
        if len(tensors) == 1 and operation.kind != "collective":
            (self.cargo.sent if operation.kind == "send" else self.cargo.received)(
                operation.number, tensors[0]
            )
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
        """Who was told that an operation is complete need not wait for it."""
        opened = self._open.get(work)
        if complete and opened is not None:
            self._end(opened)
            del self._open[work]

    def waited_for_tensor(self, tensor: torch.Tensor, wait: Callable[[], Any]) -> Any:
        """Wait, and end what works on the tensor's memory."""
        storage = tensor.untyped_storage()._cdata
        for work, opened in list(self._open.items()):
            if storage in opened.storages:
                return self._wait(work, opened, wait)
        return wait()

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
        self._moments.append(Moment("wait", opened.operation.number))
        self._check(opened)
        self.contents.brought(opened.brings)

    def _unseen(self) -> Iterator[torch.Tensor]:
        """What lies in the memory of collectives that were not waited for: a future's wait is not seen."""
        for opened in self._open.values():
            if opened.operation.kind == "collective":
                yield from opened.brings

    def _check(self, opened: _Open) -> None:
        if not opened.guards:
            return
        # every one of them: a receive is handed over here
        intact = [guard.complete() for guard in opened.guards]
        if not all(intact):
            self._overwritten.append(opened.operation.number)

    def _note(self, call: Call, tensors: Sequence[torch.Tensor]) -> Operation:
        name = call.group.group_name
        if name not in self._groups:
            self._groups[name] = tuple(dist.get_process_group_ranks(call.group))
        if not self._ours:
            self.used.add(name)
        members, kind = self._groups[name], _KINDS.get(call.name, "collective")
        batch = self._batch()
        with self._lock:
            operation = Operation(
                number=len(self._operations),
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
            self._operations.append(operation)
            self._moments.append(Moment("issue", operation.number))
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
        if frame is not self._batch_frame:  # kept alive by us, so that no other frame takes its place
            self._batch_frame = frame
            with self._lock:
                self._batches += 1
        return self._batches - 1


@contextmanager
def our_own() -> Iterator[None]:
    """What is communicated now is the harness's business, and none of the implementation's."""
    recorders = list(_recording())
    for recorder in recorders:
        recorder._ours = True
    try:
        yield
    finally:
        for recorder in recorders:
            recorder._ours = False


def pending() -> tuple[Pending, ...]:
    """What is pending in this process; empty where nothing is recorded. For any thread."""
    return tuple(one for recorder in list(_recording()) for one in recorder.pending())


def due_of(operation: Operation) -> Due | None:
    """What one of this process's operations is for; None where that cannot be told. For any thread."""
    found = _recording()[-1:]
    return found[0].due(operation) if found else None


def issued() -> tuple[tuple[Operation, ...], dict[str, tuple[int, ...]]] | None:
    """What this process has issued so far, and its groups' members; None where nothing is recorded. For any thread."""
    found = _recording()[-1:]
    return (tuple(found[0]._operations), dict(found[0]._groups)) if found else None


@functools.cache
def _recording() -> list[TrafficRecorder]:
    """Who records in this process."""
    return []


def _work_in(result: Any) -> dist.Work | None:
    """The work object among what an operator returned."""
    last = result[-1] if isinstance(result, tuple | list) and result else result
    return dist.Work.unbox(last) if isinstance(last, torch.ScriptObject) else None


def _layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


_BATCH_CODE = inspect.unwrap(dist.batch_isend_irecv).__code__
