"""Faults of splitting and merging: the right values in the wrong places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..runtime import Work, Yield


class _OutputsSwapped(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        outputs = dict(done.outputs)
        if len(outputs) > 1:
            outputs[0], outputs[1] = outputs[1], outputs[0]
        return super().make_result(mode, batch, replace(done, outputs=outputs))


class OutputsSwapped(ReferenceAdapter):
    """Outputs are merged in another order than the batch's."""

    pipeline = _OutputsSwapped


class _LastOutputDropped(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        m = batch.num_microbatches
        result = super().make_result(mode, batch, done)
        if m == 1 or not done.outputs:
            return result
        shorter = replace(batch, num_microbatches=m - 1)
        return replace(result, output=super().make_result(Mode.EVAL, shorter, done).output)


class LastOutputDropped(ReferenceAdapter):
    """A loop over the outputs ends one too early."""

    pipeline = _LastOutputDropped


class _LossesReversed(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        return result if result.losses is None else replace(result, losses=list(reversed(result.losses)))


class LossesReversed(ReferenceAdapter):
    """Losses are collected on a stack."""

    pipeline = _LossesReversed


class _LossKwargsDropped(ReferencePipeline):
    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        return self.plan.loss.function


class LossKwargsDropped(ReferenceAdapter):
    """The loss is called with output and target only."""

    pipeline = _LossKwargsDropped


class _TargetsShifted(ReferencePipeline):
    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return work if _uneven(work.targets) else replace(work, targets=[*work.targets[1:], work.targets[0]])


class TargetsShifted(ReferenceAdapter):
    """Targets are fetched one microbatch too far."""

    pipeline = _TargetsShifted


class _KwargsShifted(ReferencePipeline):
    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return replace(work, kwargs={s: [*own[1:], own[0]] for s, own in work.kwargs.items()})


class KwargsShifted(ReferenceAdapter):
    """Keyword arguments are fetched one microbatch too far."""

    pipeline = _KwargsShifted


class _OutputEverywhere(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        return replace(result, output=batch.args[0].detach()) if result.output is None else result


class OutputEverywhere(ReferenceAdapter):
    """Ranks without the last stage return something too."""

    pipeline = _OutputEverywhere


class _OutputOnFirstRank(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        first, last = self.position == self.placement[0], self.position == self.placement[-1]
        if first == last:
            return result
        return replace(result, output=batch.args[0].detach() if first else None)


class OutputOnFirstRank(ReferenceAdapter):
    """The output's rank is taken to be the first stage's."""

    pipeline = _OutputOnFirstRank


class _OneTupleUnwrapped(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        output = result.output
        return replace(result, output=output[0]) if isinstance(output, tuple) and len(output) == 1 else result


class OneTupleUnwrapped(ReferenceAdapter):
    """A tuple of one tensor is returned as a tensor."""

    pipeline = _OneTupleUnwrapped


def _uneven(parts: Any) -> bool:
    return len({part.shape for part in parts}) > 1
