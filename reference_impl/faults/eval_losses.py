"""Faults of the losses that an evaluation returns; those of training are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..runtime import Work, Yield
from .fault import breaks


class _EvaluatesWrongly(ReferencePipeline):
    def wrong(self, losses: Sequence[Tensor]) -> Sequence[Tensor]:
        """What an evaluation returns in place of its losses."""
        raise NotImplementedError

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        if mode is Mode.TRAIN or result.losses is None:
            return result
        return replace(result, losses=self.wrong(result.losses))


@breaks("TRN-19", tells=r"microbatch \d's loss stands in the place of microbatch \d's")
class EvaluationLossesReversed(_EvaluatesWrongly):
    """The losses of an evaluation come in the order in which their backwards would run."""

    def wrong(self, losses: Sequence[Tensor]) -> Sequence[Tensor]:
        return list(reversed(losses))


@breaks("TRN-19", tells=r"the loss of microbatch 0 is not the reference's")
class EvaluationLossesDivided(_EvaluatesWrongly):
    """The losses of an evaluation are divided by m, as if a backward followed."""

    def wrong(self, losses: Sequence[Tensor]) -> Sequence[Tensor]:
        return [loss / len(losses) for loss in losses]


@breaks("TRN-19", tells=r"\d+ loss(es)? for \d+ microbatch(es)?$")
class EvaluationLossesPileUp(_EvaluatesWrongly):
    """An evaluation returns the losses of all evaluations so far."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._seen: list[Tensor] = []

    def wrong(self, losses: Sequence[Tensor]) -> Sequence[Tensor]:
        self._seen += losses
        return list(self._seen)


@breaks(
    "TRN-19",
    tells=r"the loss of microbatch 0 is not the reference's",
    source="https://github.com/pytorch/torchtitan/pull/4742",
)
class EvaluatedWithoutLossKwargs(ReferencePipeline):
    """The loss function's extra arguments are passed in training only."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return work if work.measured is None else replace(work, measured=self.plan.loss.function)
