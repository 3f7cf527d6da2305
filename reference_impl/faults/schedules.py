"""Faults of schedules: right numbers from the wrong computations, or in the wrong order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode, Placement, Plan, StepResult, placement_of
from pipeconform.schedule import Action, Kind

from ..adapter import ReferencePipeline
from ..containers import arguments_of
from ..runtime import Step, Yield
from ..stage import Stage
from ..tables import OFFERS
from .fault import breaks


@breaks("SCH-1")
class ForwardRepeated(Stage):
    """Every forward of a training step runs once more, and the result is thrown away."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        if differentiate:
            with torch.no_grad():
                self.module(*arguments_of(inputs), **kwargs)
        return output


@breaks("SCH-1", schedule="GPipe")
class InputPartWasted(Stage):
    """Input gradients are computed twice: before every full backward, and in it."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        saved = self._in_flight[microbatch]
        roots = [(o, g) for o, g in zip(saved.outputs, gradients, strict=True) if g is not None]
        leaves = [leaf for leaf in saved.inputs if leaf is not None]
        if leaves and roots:
            torch.autograd.grad([root for root, _ in roots], leaves, [g for _, g in roots], retain_graph=True)
        return super().backward(microbatch, gradients)


class _OtherSchedule(ReferencePipeline):
    """Runs another schedule than the one in the plan, with the same numbers."""

    other = ""

    def __init__(self, plan: Plan) -> None:
        super().__init__(replace(plan, schedule=self.other) if plan.trains else plan)


@breaks("SCH-2")
class GPipeInDisguise(_OtherSchedule):
    """1F1B runs all forwards before the first backward, as GPipe does."""

    other = "GPipe"


@breaks("SCH-3", schedule="ZB-H1", also=("SCH-2",))
class GreedyWarmUp(_OtherSchedule):
    """ZB-H1 warms up with as many forwards as ZB-H2."""

    other = "ZB-H2"


@breaks("SCH-3", schedule="ZBVZeroBubble", also=("SCH-2",))
class WeightsLast(Step):
    """All weight parts wait until the end of the step, and hold their microbatches until then."""

    def run(self, actions: Sequence[Action]) -> Yield:
        weights = [action for action in actions if action.kind is Kind.W]
        return super().run([action for action in actions if action.kind is not Kind.W] + weights)


@breaks("SCH-6", status="error", also=("FWD-1",))
class FewRefusedAlone(ReferencePipeline):
    """The first rank refuses fewer microbatches than ranks, the others wait for it."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if (
            batch.num_microbatches < len(self.plan.ranks.pipeline_ranks)
            and self.plan.ranks.pipeline_rank == 0
        ):
            raise ValueError("fewer microbatches than ranks")
        return super().run(mode, batch)


@breaks("SCH-6", also=("TRN-1",))
class SingleDropped(ReferencePipeline):
    """A single microbatch leaves no gradients, because the loop that keeps them never runs."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        if mode is Mode.TRAIN and batch.num_microbatches == 1:
            for module in self.modules.values():
                module.zero_grad()
        return result


@breaks("SCH-7", schedule="ZBVZeroBubble", tells=r"stage \d ran on pipeline rank \d; it is placed on \d")
class LoopForV(ReferencePipeline):
    """The stages of a V schedule are laid out as a loop."""

    def __init__(self, plan: Plan) -> None:
        loop = placement_of(
            Placement.LOOP, num_ranks=len(plan.ranks.pipeline_ranks), num_stages=len(plan.stages)
        )
        super().__init__(replace(plan, schedule="LoopedBFS", placement=loop))


@breaks("SCH-8")
class Misnumbered(ReferencePipeline):
    """The declared table lists the last rank's first computation last."""

    def table(self) -> str | None:
        text = super().table()
        if text is None:
            return None
        *rows, last = text.splitlines()
        first, *others = last.split(",")
        return "\n".join([*rows, ",".join([*others, first])])


@breaks("SCH-9")
class EvaluationRepeats(Stage):
    """Evaluation runs every forward but the first one twice."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        if not differentiate and microbatch:
            with torch.no_grad():
                self.module(*arguments_of(inputs), **kwargs)
        return output


class _Declaring(ReferencePipeline):
    """Declares another table than it runs."""

    def order(self, stage: int) -> Sequence[int]:
        """The microbatches of a stage in turn."""
        return range(self.plan.num_microbatches)

    def table(self) -> str | None:
        if super().table() is None:
            return None
        v = len(self.placement) // len(self.plan.ranks.pipeline_ranks)
        assert v == 1
        return "\n".join(
            ",".join(f"{s}F{k},{s}B{k}" for k in self.order(s)) for s in range(len(self.placement))
        )


@breaks("SCH-4")
class OneAtATime(_Declaring):
    """The declared table begins a microbatch only when the one before has ended."""

    pass


@breaks("SCH-5", source="https://github.com/pytorch/pytorch/issues/172668")
class OppositeOrders(_Declaring):
    """The declared table gives neighbours opposite orders of microbatches, so each waits for the other."""

    def order(self, stage: int) -> Sequence[int]:
        forth = super().order(stage)
        return forth if stage % 2 == 0 else forth[::-1]


@breaks("ERR-16", schedule="LoopedBFS", tells=r"was given its stages as a v and ran on rank \d")
class PlacementIgnored(ReferencePipeline):
    """Stages are laid out as the schedule requires, not as the plan says."""

    def __init__(self, plan: Plan) -> None:
        offer = OFFERS[plan.schedule]
        own = placement_of(
            offer.claim.placement, num_ranks=len(plan.ranks.pipeline_ranks), num_stages=len(plan.stages)
        )
        super().__init__(replace(plan, placement=own))
