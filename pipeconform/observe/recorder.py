"""Records what the stage modules of a rank report: every forward with its inputs, output and dropout masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.observe.array import Array
from pipeconform.observe.gradients import Gradients
from pipeconform.observe.late import LateForward, copied
from pipeconform.observe.observation import Event, Flow, Forward, Held, Kept, Structure
from pipeconform.observe.timeline import Timeline
from pipeconform.observe.traffic.recorder import TrafficRecorder

__all__ = ["ForwardRecorder", "hook_counts"]


class ForwardRecorder:
    """Keeps copies of what passed through the stages since the last `take`.

    With a timeline it also keeps the order; with `gradients` instead, the gradients. What is on a `device` other than
    the CPU is read by `take`.
    """

    def __init__(
        self,
        timeline: Timeline | None = None,
        traffic: TrafficRecorder | None = None,
        *,
        gradients: Gradients | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.timeline, self._traffic, self.gradients = timeline, traffic, gradients
        self.step: int | None = None
        """The running step of the program; None outside of any."""
        self._device = None if device is None or device.type == "cpu" else device
        self._forwards: list[Forward | LateForward] = []
        self._begun: dict[int, int] = {}
        self._call = ""
        self.replaced: set[int] = set()
        """The stages that ``torch.export`` has followed: what it made of them runs in their place."""

    @property
    def watcher(self) -> Timeline | Gradients | None:
        """The object that surrounds the stages' forwards."""
        return self.timeline or self.gradients

    def masks(self, stage: int) -> Sequence[Tensor]:
        """Return no masks: ranks draw them. Every forward asks as it begins, which is counted."""
        self._begun[stage] = self._begun.get(stage, 0) + 1
        return ()

    def exported(self, stage: int) -> None:
        """Note that the stage's own forward will not be called."""
        self.replaced.add(stage)

    def __deepcopy__(self, memo: object) -> ForwardRecorder:
        """Keep the same listener when an engine copies its stages."""
        return self

    def forward(
        self, stage: int, inputs: tuple[Any, ...], output: Any, masks: list[Tensor], *, training: bool
    ) -> None:
        """Copy one forward's values; neither the values nor the graph are touched."""
        if self.timeline is not None:
            self.timeline.passed(stage, inputs, output)
        if self.gradients is not None:
            self.gradients.passed(stage, output)
        if self._traffic is not None:
            self._traffic.passed(stage, len(self._forwards), inputs, output)
        grad_enabled = torch.is_grad_enabled()
        requires_grad = tuple(isinstance(value, Tensor) and value.requires_grad for value in inputs)
        call = -1 if self.watcher is None else self.watcher.call
        in_backward = torch._C._current_graph_task_id() != -1

        def recorded(inputs: tuple[Any, ...], output: Any, masks: list[Tensor]) -> Forward:
            return Forward(
                stage=stage,
                grad_enabled=grad_enabled,
                training=training,
                requires_grad=requires_grad,
                inputs=tuple(Structure.of(value) for value in inputs),
                output=Structure.of(output),
                masks=tuple(Array.of(mask) for mask in masks),
                call=call,
                in_backward=in_backward,
            )

        if self._device is None:
            self._forwards.append(recorded(inputs, output, masks))
            return
        copies = copied((inputs, output, masks), device=self._device)
        self._forwards.append(
            LateForward(stage=stage, grad_enabled=grad_enabled, read=lambda: recorded(*copies()))
        )

    @contextmanager
    def inside_call(self, call: str) -> Iterator[None]:
        """Note that the pipeline is inside of a call that computes no stage, such as ``restore()``."""
        self._call = call
        try:
            yield
        finally:
            self._call = ""

    def standing(self) -> str:
        """The last computation of this rank, or the call it is inside of; any thread may ask while another computes.

        A forward is written as in schedules, ``0F2``, with its place among the stage's forwards in this step, counted
        from 0; forwards without gradients before those with gradients are dry runs.
        """
        place = "outside of any step" if self.step is None else f"step {self.step}"
        if self._call:
            return f"{place}, inside {self._call}"
        event = None if self.timeline is None else self.timeline.last
        if event is not None and event.kind != "F":
            what = {"I": "input gradient", "W": "weight gradient"}[event.kind]
            return f"{place}, last computed: {what} of stage {event.stage}"
        forwards = list(self._forwards)
        if not forwards:
            return f"{place}, nothing computed yet"
        last = forwards[-1]
        alike = sum((one.stage, one.grad_enabled) == (last.stage, last.grad_enabled) for one in forwards)
        return f"{place}, last computed: {last.stage}F{alike - 1}"

    @staticmethod
    def inside(frame: FrameType) -> str:
        """The stage whose forward a frame is, in words; empty for any other frame."""
        own = frame.f_locals.get("self")
        if frame.f_code.co_name == "forward" and type(own).__name__ == "StageModule":
            return f"inside the forward of stage {getattr(own, 'index', '?')}"
        return ""

    def take(self) -> tuple[Forward, ...]:
        """Return what was recorded, and start again."""
        taken, self._forwards = self._forwards, []
        return tuple(one.read() if isinstance(one, LateForward) else one for one in taken)

    def begun(self) -> dict[int, int]:
        """Return how often each stage was begun since the last call."""
        taken, self._begun = self._begun, {}
        return taken

    def held(self) -> tuple[Held, ...] | None:
        """Return what was kept since the last call; None if memory is not observed."""
        return None if self.timeline is None else self.timeline.held()

    def kept(self) -> Kept | None:
        """Return what was alive since the last call; None if memory is not observed."""
        return None if self.timeline is None else self.timeline.kept()

    def flow(self) -> tuple[Flow, ...] | None:
        """Return the gradients since the last call; None if they are not observed."""
        return None if self.gradients is None else self.gradients.take()

    def events(self) -> tuple[Event, ...] | None:
        """Return the events since the last call; None without a timeline."""
        return None if self.timeline is None else self.timeline.take()

    def forget(self) -> None:
        """Forget what was recorded."""
        self.take()
        self.begun()
        self.events()
        self.flow()


def hook_counts(module: nn.Module) -> dict[str, int]:
    """How often the model's own hooks ran since the last call, by hook kind; resets the counters."""
    totals: dict[str, int] = {}
    for part in module.modules():
        fires = getattr(part, "fires", None)
        if fires is not None:
            for kind, count in fires.items():
                totals[kind] = totals.get(kind, 0) + count
            fires.clear()
    return totals
