"""Faults of splitting and merging: the right values in the wrong places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferencePipeline
from ..runtime import Work, Yield
from .fault import breaks


@breaks("FWD-2", also=("FWD-1",))
class OutputsSwapped(ReferencePipeline):
    """The first two microbatches change places in the output."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        outputs = dict(done.outputs)
        if len(outputs) > 1:
            outputs[0], outputs[1] = outputs[1], outputs[0]
        return super().make_result(mode, batch, replace(done, outputs=outputs))


@breaks("FWD-2", also=("FWD-1",))
class LastOutputDropped(ReferencePipeline):
    """The last microbatch is missing from the output."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        m = batch.num_microbatches
        result = super().make_result(mode, batch, done)
        if m == 1 or not done.outputs:
            return result
        shorter = replace(batch, num_microbatches=m - 1)
        return replace(result, output=super().make_result(Mode.EVAL, shorter, done).output)


@breaks("TRN-2")
class LossesReversed(ReferencePipeline):
    """The losses come in the order of the backwards."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        return result if result.losses is None else replace(result, losses=list(reversed(result.losses)))


@breaks("TRN-12")
class LossKwargsDropped(ReferencePipeline):
    """The loss function's extra arguments are not passed."""

    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        return self.plan.loss.function


@breaks("TRN-1", source="https://github.com/deepspeedai/DeepSpeed/issues/5729")
class TargetsShifted(ReferencePipeline):
    """Every microbatch is compared with the next one's target."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return work if _uneven(work.targets) else replace(work, targets=[*work.targets[1:], work.targets[0]])


@breaks("FWD-9")
class KwargsShifted(ReferencePipeline):
    """Every microbatch gets the next one's keyword arguments."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return replace(work, kwargs={s: [*own[1:], own[0]] for s, own in work.kwargs.items()})


@breaks("FWD-3")
class OutputEverywhere(ReferencePipeline):
    """Ranks without the last stage also return an output."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        return replace(result, output=batch.args[0].detach()) if result.output is None else result


@breaks("FWD-3", also=("FWD-1",))
class OutputOnFirstRank(ReferencePipeline):
    """The first rank returns the output, the last does not."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        first, last = self.position == self.placement[0], self.position == self.placement[-1]
        if first == last:
            return result
        return replace(result, output=batch.args[0].detach() if first else None)


@breaks("FWD-11")
class OneTupleUnwrapped(ReferencePipeline):
    """A 1-tuple is returned as its element."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        output = result.output
        return replace(result, output=output[0]) if isinstance(output, tuple) and len(output) == 1 else result


@breaks("FWD-11", status="error", tells="the loss function is given a Tensor")
class LossTriedOnTensor(ReferencePipeline):
    """Before each microbatch's loss, the loss function is tried on the tensor that a 1-tuple holds."""

    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        function = super().make_loss(batch)

        def tried(output: Any, target: Any) -> Tensor:
            if isinstance(output, tuple) and len(output) == 1:
                function(output[0].detach(), target)
            return function(output, target)

        return tried


def _uneven(parts: Any) -> bool:
    return len({part.shape for part in parts}) > 1
