"""Faults around a step: building, evaluation, updates, repetition."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.adapter import AdamStep, Batch, Mode, Operation, OptimizerStep, Plan, SgdStep, StepResult

from ..adapter import ReferencePipeline
from ..containers import arguments_of
from ..stage import Stage
from .fault import breaks


@breaks("LIF-6")
class RandomAtBuild(ReferencePipeline):
    """Building draws a random number, so that later masks are not those of the unpipelined model."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        torch.rand(1)


@breaks("LIF-6", also=("FWD-1",))
class WeightsTouchedAtBuild(ReferencePipeline):
    """Building rounds the parameters, because it converts modules to a smaller dtype and back."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        for module in self.modules.values():
            module.bfloat16().to(_dtype_of(plan.stages[0]()))


class _RunsFirst(Stage):
    """Runs its module once more before its first microbatch, to learn its outputs."""

    tried = False

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if not self.tried:
            self.tried = True
            with torch.no_grad():
                self.try_out(arguments_of(inputs), kwargs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)

    def try_out(self, arguments: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Run the module, for the shapes of what it returns."""
        self.module(*arguments, **kwargs)


@breaks("TRN-9")
class DryRun(_RunsFirst):
    """A dry run before the first step leaves its trace in batch norm."""


@breaks("TRN-9", source="https://github.com/pytorch/pytorch/pull/188558")
class BuffersCopiedBack(_RunsFirst):
    """A dry run copies the values of buffers back into their tensors, where the module may have others by then."""

    def try_out(self, arguments: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        before = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        super().try_out(arguments, kwargs)
        for buffer, value in before:
            if not buffer.equal(value):
                buffer.copy_(value)


@breaks("TRN-9", also=("FWD-25",), status="error", tells="single memory location")
class EveryBufferCopiedBack(_RunsFirst):
    """A dry run puts every buffer back by writing to it, which cannot be done to an expanded one."""

    def try_out(self, arguments: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        before = [
            (part, name, buffer, buffer.clone())
            for part in self.module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]
        super().try_out(arguments, kwargs)
        for part, name, buffer, value in before:
            part._buffers[name] = buffer
            buffer.copy_(value)


def _run_once_more(module: nn.Module, inputs: Any, kwargs: Mapping[str, Any]) -> None:
    """Run a module once more, and leave no trace in its buffers."""
    arguments = arguments_of(inputs)
    before = {name: value.clone() for name, value in module.named_buffers()}
    with torch.no_grad():
        module(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments), **kwargs)
        for name, value in module.named_buffers():
            value.copy_(before[name])


@breaks(
    "FWD-25",
    tells=r"the (pre-)?forward hook in stage \d ran \d+ times? for \d+ microbatch(es)?; expected \d+",
)
class HooksInDryRun(Stage):
    """A dry run before the first microbatch of a step fires the model's hooks; it restores the buffers."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if not microbatch:
            _run_once_more(self.module, inputs, kwargs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


@breaks(
    "FWD-17",
    tells=r"the (pre-)?forward hook in stage \d ran \d+ times? for \d+ microbatch(es)?; expected \d+",
    also=("SCH-1",),
)
class ForwardTwice(Stage):
    """Every forward runs twice, and so do the model's hooks.

    Restores the buffers in between, but nothing else.
    """

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        _run_once_more(self.module, inputs, kwargs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


# keyword arguments are not added by hand, and have no gradient: TRN-7
@breaks(
    "FWD-17",
    tells=r"the post-accumulate-grad hook in stage \d ran 0 times for \d+ microbatch(es)?; expected",
    also=("TRN-7",),
)
class GradientsAddedByHand(Stage):
    """Gradients of parameters are added by hand, so that their post-accumulate-grad hooks never run."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self._dw_builder is not None:
            return super().backward(microbatch, gradients)
        saved, roots, starts = self._begin(microbatch, "backward", gradients)
        leaves = [leaf for leaf in saved.inputs if leaf is not None]
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        wanted = [*leaves, *trained] if roots else []
        found = torch.autograd.grad(roots, wanted, starts, allow_unused=True) if wanted else ()
        for parameter, gradient in zip(trained, found[len(leaves) :], strict=bool(found)):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self._due[microbatch] = "nothing"
        arrived = iter(found)
        return [None if leaf is None else next(arrived, None) for leaf in saved.inputs]


@breaks("LIF-1")
class EvaluationClearsGradients(ReferencePipeline):
    """Evaluation in the middle of accumulation clears the gradients."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is Mode.EVAL:
            for module in self.modules.values():
                module.zero_grad()
        return super().run(mode, batch)


@breaks("LIF-1")
class EvaluationDraws(ReferencePipeline):
    """Evaluation draws a random number, so that the next training step has other dropout masks."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is Mode.EVAL and self.modules:
            torch.rand(1)
        return super().run(mode, batch)


@breaks("TRN-14")
class FirstStageNotUpdated(ReferencePipeline):
    """The optimizer has the parameters of all stages but the first."""

    def apply(self, operation: Operation) -> None:
        kept = [p.detach().clone() for p in self.modules[0].parameters()] if 0 in self.modules else []
        super().apply(operation)
        if isinstance(operation, OptimizerStep) and kept:
            with torch.no_grad():
                for parameter, before in zip(self.modules[0].parameters(), kept, strict=True):
                    parameter.copy_(before)


@breaks("TRN-14")
class LearningRateIgnored(ReferencePipeline):
    """Parameters move by the engine's own learning rate, even if the rate should be zero."""

    def __init__(self, plan: Plan) -> None:
        optimizer = plan.optimizer
        if isinstance(optimizer, SgdStep | AdamStep):
            optimizer = replace(optimizer, lr=0.01)
        super().__init__(replace(plan, optimizer=optimizer))


@breaks("TRN-10")
class MasksRepeated(Stage):
    """All microbatches get the same dropout masks, because the random state is reset before each that is trained."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if differentiate:
            torch.manual_seed(self.index)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


@breaks("LIF-5")
class Unrepeatable(ReferencePipeline):
    """The last bit of the gradients depends on the clock: contributions are added in order of arrival."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        for module in self.modules.values():
            for parameter in module.parameters():
                if parameter.grad is not None and mode is Mode.TRAIN and time.perf_counter_ns() % 2:
                    onward = torch.full_like(parameter.grad, float("inf"))
                    parameter.grad.copy_(torch.nextafter(parameter.grad, onward))
        return result


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next(p.dtype for p in module.parameters())
