"""Faults of replicas: what is averaged, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from pipeconform.adapter import Plan
from pipeconform.schedule import Action, Kind

from ..adapter import ReferencePipeline
from ..runtime import Step, Work, Yield
from .fault import breaks

_WHOLE = (Kind.B, Kind.W)


def gradients_of(step: Step, s: int) -> list[Tensor]:
    """The gradients of a stage with replicas."""
    return [p.grad for p in step.replicas[s].module.parameters() if p.grad is not None]


def _num_replicas(step: Step, s: int) -> int:
    return dist.get_world_size(step.replicas[s].groups[0])


def _backwards(
    step: Step, actions: Sequence[Action], *, kinds: tuple[Kind, ...] = _WHOLE
) -> dict[int, list[int]]:
    """By stage, the positions of its backwards in the list of actions."""
    found: dict[int, list[int]] = {}
    for position, action in enumerate(actions):
        if action.kind in kinds and action.stage in step.replicas:
            found.setdefault(action.stage, []).append(position)
    return found


# ------------------------------------------------------------------- DPC-1: the mean over replicas


@breaks("DPC-1", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the same on all replicas")
class NeverSynchronised(Step):
    """Every replica keeps its own gradients."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        return {}


@breaks("DPC-1", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage 0 is not")
class OnlyTheLastStage(Step):
    """Only the stage that computes the loss is synchronised."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        last = len(self.placement) - 1
        found = super().complete_after(actions)
        return {position: [s for s in stages if s == last] for position, stages in found.items()}


@breaks("DPC-1", tells=r"all of stage \d's values are [23] times the reference's")
class SummedOverReplicas(Step):
    """Gradients are the sum over replicas instead of the mean."""

    def _average(self, s: int) -> None:
        super()._average(s)
        for gradient in gradients_of(self, s):
            gradient.mul_(_num_replicas(self, s))


@breaks("DPC-1", tells=r"all of stage \d's values are 0\.5 times the reference's")
class DividedByTheWorld(Step):
    """The sum over replicas is divided by the number of all ranks."""

    def _average(self, s: int) -> None:
        super()._average(s)
        for gradient in gradients_of(self, s):
            gradient.mul_(_num_replicas(self, s) / dist.get_world_size())


# ----------------------------------------------------------------------- DPC-2: synchronised once


@breaks("DPC-2", tells=r"rank \d reduces \d+ in step 0, (\d) times as many, in \d+ operations \(m = \1\)")
class SynchronisedPerMicrobatch(Step):
    """Gradients are averaged after every backward; the values are right, because a mean of means is the mean."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for s, positions in _backwards(self, actions).items():
            for position in positions:
                found.setdefault(position, []).append(s)
        return found


@breaks("DPC-2", tells=r"rank \d reduces \d+ in step 0, 2 times as many")
class SynchronisedTwice(Step):
    """Gradients are averaged, and then once more."""

    def _average(self, s: int) -> None:
        super()._average(s)
        super()._average(s)


@breaks("DPC-2", also=("DPC-1",), tells="before the stage's last backward has begun")
class BeforeTheLastBackward(Step):
    """Gradients are averaged after the last backward but one."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for s, positions in _backwards(self, actions).items():
            found.setdefault(positions[-2:][0], []).append(s)
        return found


@breaks(
    "DPC-2", schedule="ZBVZeroBubble", tells="before the stage's last backward has begun", also=("DPC-1",)
)
class BeforeTheWeightParts(Step):
    """Gradients are averaged when the last input part has run; weight parts follow."""

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for s, positions in _backwards(self, actions, kinds=(Kind.B, Kind.I)).items():
            found.setdefault(positions[-1], []).append(s)
        return found


# ------------------------------------------------------- DPC-3: parameters that are not used alike


class _CountingStep(Step):
    known: dict[int, int]

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for s, positions in _backwards(self, actions).items():
            due = self.known.setdefault(s, len(positions))
            if due <= len(positions):
                found.setdefault(positions[due - 1], []).append(s)
        return found


@breaks("DPC-3", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not")
class FirstCountRemembered(ReferencePipeline):
    """Gradients are averaged after as many backwards as there were in the first step."""

    step_type = _CountingStep

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._known: dict[int, int] = {}

    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        assert isinstance(step, _CountingStep)
        step.known = self._known
        return step


@breaks("DPC-3", tells=r"(?s)the gradient of blocks\.\d\.[\w.]+ in stage \d is not .*missing")
class UnusedLeftOut(Step):
    """A replica that does not use a parameter gets no gradient for it, whatever the others have."""

    def _average(self, s: int) -> None:
        unused = [p for p in self.replicas[s].module.parameters() if p.grad is None]
        super()._average(s)
        for parameter in unused:
            parameter.grad = None


@breaks("DPC-3", tells=r"the buffer of blocks\.\d\.norm\.running_\w+ in stage \d is not the reference's")
class BuffersOfTheFirst(Step):
    """After every step all replicas have the first one's buffers."""

    def run(self, actions: Sequence[Action]) -> Yield:
        done = super().run(actions)
        for replicas in self.replicas.values():
            for buffer in replicas.module.buffers():
                first = dist.get_global_rank(replicas.groups[0], 0)
                dist.broadcast(buffer, first, group=replicas.groups[0])
        return done
