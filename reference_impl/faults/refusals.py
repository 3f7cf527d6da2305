"""Faults of refusing: mistakes are accepted, found too late or elsewhere, or badly reported."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferencePipeline
from ..batches import BatchCheck, sizes_in
from ..metadata import BoundaryMeta
from ..runtime import Step, Work, Yield
from ..stage import Stage
from .fault import breaks

# ------------------------------------------------------------------------------------------- inputs


class _SizesOnly(BatchCheck):
    def check(self, batch: Batch) -> None:
        sizes_in(batch)


@breaks("ERR-1", tells="promised: ValueError")
class InputsUnchecked(ReferencePipeline):
    """Inputs are not compared with those of earlier steps."""

    check_type = _SizesOnly


@breaks("ERR-2", tells="no rank raised; promised: ValueError", also=("FWD-5",))
class InputsCast(ReferencePipeline):
    """Inputs of another dtype are silently converted."""

    check_type = _SizesOnly

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        dtype = next(p.dtype for module in self.modules.values() for p in module.parameters())
        real = (arg.real if arg.is_complex() else arg for arg in batch.args)
        return super().make_work(mode, replace(batch, args=tuple(arg.to(dtype) for arg in real)))


@breaks("ERR-1", tells="raised ValueError: .*; it does not (say whether|name the expected shape)")
class InputsNotDescribed(BatchCheck):
    """The error about an input names neither the expected nor the actual one."""

    def check(self, batch: Batch) -> None:
        try:
            super().check(batch)
        except ValueError:
            raise ValueError("the input is not as expected") from None


@breaks("ERR-1", tells="it does not say that .* was expected")
class SidesExchanged(BatchCheck):
    """The error about an input confuses expected and actual."""

    def check(self, batch: Batch) -> None:
        try:
            super().check(batch)
        except ValueError as error:
            told = str(error).replace("expected ", "\0").replace("got ", "expected ").replace("\0", "got ")
            raise ValueError(told) from None


class _RaggedCut(BatchCheck):
    def check(self, batch: Batch) -> None:
        super().check(_cut(batch))


@breaks("ERR-7", tells="no rank raised; promised: ValueError")
class RaggedAccepted(ReferencePipeline):
    """If an argument has more samples than the first one, the rest is left out."""

    check_type = _RaggedCut

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        return super().make_work(mode, _cut(batch))

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        return super().make_result(mode, _cut(batch), done)


def _cut(batch: Batch) -> Batch:
    dim, most = batch.batch_dim, batch.args[0].shape[batch.batch_dim] if batch.args else 0
    return replace(batch, args=tuple(arg.narrow(dim, 0, min(most, arg.shape[dim])) for arg in batch.args))


@breaks("ERR-1", tells="raised AssertionError: .*promised: ValueError")
class InputsAsserted(BatchCheck):
    """A wrong input raises an AssertionError, which was not declared."""

    def check(self, batch: Batch) -> None:
        try:
            super().check(batch)
        except ValueError as error:
            raise AssertionError(*error.args) from None


@breaks(
    "ERR-2", status="crashed", tells=r"rank \d died \(SIGABRT\), when in step \d the first stage is given"
)
class InputsAbort(BatchCheck):
    """Inputs that are not floating end the process, as an assertion in native code does."""

    def check(self, batch: Batch) -> None:
        if not batch.args[0].is_floating_point():
            os.abort()
        super().check(batch)


# ------------------------------------------------------------------------------------------ outputs


class _UncheckedStage(Stage):
    def _check(self, found: BoundaryMeta, samples: int | None) -> None:
        """Accept every output."""


@breaks("ERR-3", tells="in step 2 stage .*promised: StageError")
class OutputsUnchecked(ReferencePipeline):
    """A stage's outputs are not compared with its earlier ones."""

    stage_type = _UncheckedStage


@breaks("ERR-4", tells=r"for microbatch \d.*(nevertheless given|promised: StageError)", also=("ERR-3",))
class OutputsCheckedWithinSteps(Stage):
    """Outputs are compared only with those of the same step."""

    def clear(self) -> None:
        super().clear()
        self._frozen = None


@breaks("ERR-4", tells="for microbatch [1-9].*promised: StageError")
class FirstMicrobatchChecked(Stage):
    """Only the first microbatch of a step is checked."""

    checked = False

    def clear(self) -> None:
        super().clear()
        self.checked = False

    def _check(self, found: BoundaryMeta, samples: int | None) -> None:
        if not self.checked:
            self.checked = True
            super()._check(found, samples)


@breaks("ERR-4", tells="stage [1-9] hands on .*promised: StageError")
class FirstStageChecked(Stage):
    """Only the first stage's outputs are checked."""

    def _check(self, found: BoundaryMeta, samples: int | None) -> None:
        if not self.index:
            super()._check(found, samples)


@breaks("ERR-3", also=("ERR-6", "ERR-10"), tells="raised KeyError", or_hangs=True)
class ErrorsSwallowed(Step):
    """A stage's error is swallowed, and the step goes on without its output."""

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        """Ignore the error."""


class _LateStep(Step):
    """Checks outputs after it has sent them."""

    def send_output(self, s: int, k: int) -> None:
        output = self.outputs.get((s, k))
        super().send_output(s, k)
        if self._failure is None and output is not None:
            try:
                Stage._check(self.stages[s], BoundaryMeta.of(output), None)
            except ValueError as error:
                self._fail(s, k, "forward", error)


@breaks("ERR-3", tells="nevertheless given|its message does not name stage")
class CheckedAfterSending(ReferencePipeline):
    """Outputs are checked after they have been sent."""

    stage_type = _UncheckedStage
    step_type = _LateStep


class _ReceivingStep(Step):
    """Checks what it received."""

    def receive_input(self, s: int, k: int) -> None:
        super().receive_input(s, k)
        if self._failure is None:
            try:
                Stage._check(self.stages[s], BoundaryMeta.of(self.inputs[s, k]), None)
            except ValueError as error:
                self._fail(s, k, "forward", error)


@breaks("ERR-3", tells="promised: StageError")
class CheckedByReceiver(ReferencePipeline):
    """Outputs are checked where they arrive."""

    stage_type = _UncheckedStage
    step_type = _ReceivingStep


class _RememberingStage(_UncheckedStage):
    first: Tensor | None = None


class _ReinterpretingStep(Step):
    """Sends the bytes of every output as if they had the first one's dtype and shape."""

    def send_output(self, s: int, k: int) -> None:
        output, stage = self.outputs.get((s, k)), self.stages[s]
        if isinstance(output, Tensor) and isinstance(stage, _RememberingStage):
            stage.first = output if stage.first is None else stage.first
            if (output.dtype, output.shape) != (stage.first.dtype, stage.first.shape):
                self.outputs[s, k] = _read_as(output, stage.first)
        super().send_output(s, k)


def _read_as(value: Tensor, like: Tensor) -> Tensor:
    data = value.detach().contiguous().reshape(-1).view(torch.uint8)
    room = data.new_zeros(like.nbytes)
    room[: len(data)] = data[: len(room)]
    return room.view(like.dtype).reshape(like.shape).requires_grad_(value.requires_grad)


@breaks("ERR-3", tells=r"values that stage \d never made|promised: StageError", also=("FWD-2",))
class BytesReinterpreted(ReferencePipeline):
    """Every output's bytes are read with the first one's dtype and shape."""

    stage_type = _RememberingStage
    step_type = _ReinterpretingStep
