"""Records the communication of one rank, with what its operations carry and what happens to their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from pipeconform.observe.traffic.buffers import Received, Sent
from pipeconform.observe.traffic.cargo import CargoFinder
from pipeconform.observe.traffic.contents import Carried, ContentFinder, bytes_of
from pipeconform.observe.traffic.due import Due, Neighbours, due
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.operations import Operation
from pipeconform.ranks.recording.recorder import Recorder

__all__ = ["TrafficRecorder"]


class _InFlight(NamedTuple):
    """The memory of an operation that has not been waited for."""

    guards: Sequence[Sent | Received]
    carries: Carried


class TrafficRecorder:
    """Records within `recording`; `given` is the pipeline's group.

    With `guard`, memory in flight is guarded as ``buffers`` says.
    """

    def __init__(self, *, given: dist.ProcessGroup | None = None, guard: bool = True) -> None:
        self.cargo = CargoFinder()
        """Finds out what operations carry, if the rank's stages report to it."""
        self.contents = ContentFinder(self._unseen)
        """Finds out which inputs came by operations, if the rank's stages report to it and memory is guarded."""
        self.neighbours: Neighbours | None = None
        """Knows what is due between this rank and others, if that is known."""
        self._recorder = Recorder(self)
        self._given = None if given is None else given.group_name
        self._guard = guard
        self._overwritten: list[int] = []
        self._unread: list[
            tuple[int, torch.Tensor]
        ] = []  # whether an operation's memory was intact, on the device

    @contextmanager
    def recording(self) -> Iterator[TrafficRecorder]:
        """Record everything that this process communicates, in all threads; see `Recorder`."""
        with self._recorder.recording():
            yield self

    @property
    def used(self) -> set[str]:
        """Names of the groups on which anything but `our_own` was communicated."""
        return self._recorder.used

    def begin(self, step: int) -> None:
        """A step of the program begins, or the time after the last."""
        self._recorder.step = step
        self.cargo.begin()
        self.contents.begin(step)

    def passed(self, stage: int, forward: int, inputs: Sequence[Any], output: Any) -> None:
        """A forward of `stage` has ended; it was number `forward` of all that the rank ran in this step."""
        self.cargo.passed(stage, forward, inputs, output)
        if self._guard:
            self.contents.passed(stage, forward, inputs)

    def let_go(self) -> None:
        """Forget operations that were never waited for, and the neighbours: both keep connections open."""
        self._recorder.let_go()
        self.neighbours = None
        self.cargo, self.contents = CargoFinder(), ContentFinder()

    def traffic(self) -> Traffic:
        """What was recorded."""
        for operation, kept in self._recorder.open():
            self._check(operation, kept)  # an operation that is never waited for is in flight until the end
        if self._unread:
            torch.accelerator.synchronize()
            unread, self._unread = self._unread, []
            self._overwritten += [number for number, intact in unread if not intact.item()]
        return Traffic(
            groups=dict(self._recorder.groups),
            given=self._given,
            default=None if dist.group.WORLD is None else dist.group.WORLD.group_name,
            operations=tuple(self._recorder.operations),
            moments=tuple(self._recorder.moments),
            overwritten=tuple(dict.fromkeys(self._overwritten)),
            cargo=dict(self.cargo.found),
            arrived=tuple(self.contents.found),
        )

    # The calls of `ranks.recording.recorder.Companion`.

    def issued(
        self, operation: Operation, arguments: tuple[Any, ...], tensors: Sequence[torch.Tensor], *, ours: bool
    ) -> tuple[tuple[Any, ...], _InFlight]:
        """Guard the operation's memory; a receive is run on memory of the recorder's."""
        guards: list[Sent | Received] = []
        if self._guard and operation.kind == "send":
            guards = [Sent(tensor) for tensor in tensors]
        elif self._guard and operation.kind == "receive":
            received = [Received(tensor) for tensor in tensors]
            guards, arguments = [*received], ([one.memory for one in received], *arguments[1:])
        brings = tensors if self._guard and operation.kind != "send" and not ours else ()
        before = tuple(map(bytes_of, brings)) if operation.kind == "collective" else ()
        return arguments, _InFlight(guards, Carried(brings, before))

    def on_its_way(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        """Note the tensor. Work that can wait is done here, because the other side waits for the message."""
        if len(tensors) == 1 and operation.kind != "collective":
            note = self.cargo.sent if operation.kind == "send" else self.cargo.received
            note(operation.number, tensors[0])

    def ended(self, operation: Operation, kept: _InFlight) -> None:
        """Check the operation's memory, and note what it brought."""
        self._check(operation, kept)
        self.contents.brought(kept.carries)

    def purpose(self, operation: Operation) -> Due | None:
        """What one of the operations is for; None if unknown."""
        if self.neighbours is None:
            return None
        before = self._recorder.operations[: operation.number]
        return due(self.neighbours, operation, before, dict(self.cargo.found))

    def _unseen(self) -> Iterator[Carried]:
        """What collectives carry that were not waited for: a future's wait is not seen."""
        for operation, kept in self._recorder.open():
            if operation.kind == "collective":
                yield kept.carries

    def _check(self, operation: Operation, kept: _InFlight) -> None:
        # every one of them: a receive is handed over here
        intact = [guard.complete() for guard in kept.guards]
        self._unread += [(operation.number, one) for one in intact if isinstance(one, torch.Tensor)]
        if not all(one for one in intact if isinstance(one, bool)):
            self._overwritten.append(operation.number)
