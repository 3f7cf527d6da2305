"""Faults after an error: lost messages and causes, ranks that wait or die, pipelines that no longer work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult
from pipeconform.schedule import Action

from ..adapter import ReferencePipeline
from ..batches import BatchCheck, sizes_in
from ..containers import leaves_of
from ..errors import PeerError, PipelineError, StageError
from ..runtime import Step, Work, Yield
from ..stage import Stage
from .fault import breaks

# --------------------------------------------------------------------------- values and gradients


@breaks("ERR-5", tells="None|a text")
class NothingPatched(Stage):
    """Zeros replace outputs that are no tensors."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        handle = self.module.register_forward_hook(_zeros_for_nothing)
        try:
            return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        finally:
            handle.remove()


def _zeros_for_nothing(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    if any(leaf is None or isinstance(leaf, str) for leaf in leaves_of(output)):
        return torch.zeros_like(leaves_of(inputs)[0], requires_grad=True)
    return None


@breaks("ERR-5", tells="one tensor too few.*no rank raised")
class MissingRefilled(Stage):
    """A stage without an output hands on its input."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        handle = self.module.register_forward_hook(_input_for_nothing)
        try:
            return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        finally:
            handle.remove()


def _input_for_nothing(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    return leaves_of(inputs)[0] * 1.0 if not leaves_of(output) else None


@breaks("ERR-6", tells="no rank raised; promised: StageError")
class BackwardsSkipped(Step):
    """A backward that fails is silently skipped: its gradients are zeros."""

    def backward(self, s: int, k: int, *, whole: bool) -> None:
        waiting = self.stages[s]._in_flight[k].inputs
        try:
            super().backward(s, k, whole=whole)
        except RuntimeError:
            found = [None if leaf is None else torch.zeros_like(leaf) for leaf in waiting]
            self.stages[s]._in_flight.pop(k, None)
            if s and self._is_here(s - 1):
                self.output_gradients[s - 1, k] = found
            else:
                self.input_gradients[s, k] = found


@breaks("ERR-6", tells=r"for microbatch (\d).*it does not name microbatch \1")
class MicrobatchUnnamed(Step):
    """Errors name the stage that failed, but not the microbatch."""

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        super()._fail(s, k, what, error)
        self._failure = StageError(f"{self._name}, stage {s}, {what}: {error}")
        self._failure.__cause__ = error


# ----------------------------------------------------------------------------------------- batches


@breaks("ERR-7", tells="raised IndexError")
class BatchOutOfRange(BatchCheck):
    """A batch that cannot be split raises an IndexError."""

    def check(self, batch: Batch) -> None:
        try:
            super().check(batch)
        except ValueError:
            raise IndexError("list index out of range") from None


class _EmptyCheck(BatchCheck):
    def check(self, batch: Batch) -> None:
        """Accept every batch."""


@breaks("ERR-7", tells="no rank raised; promised: ValueError", also=("ERR-1",))
class BatchSkipped(ReferencePipeline):
    """A batch that cannot be split is skipped."""

    check_type = _EmptyCheck

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            sizes_in(batch)
        except ValueError:
            return StepResult()
        return super().run(mode, batch)


# -------------------------------------------------------------------------------------- exceptions


@breaks("ERR-10", also=("ERR-3", "ERR-4", "ERR-6"), tells="raised .*DeliberateError: .*promised: StageError")
class ExceptionsNotWrapped(Step):
    """The model's own exception is raised unchanged, without saying where; other ranks get the notice."""

    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except StageError as error:
            raise (error.__cause__ or error) from None


@breaks("ERR-10", tells="it does not have the model's own exception as its cause")
class CauseLost(Step):
    """The error does not have the original exception as its cause."""

    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except StageError as error:
            raise StageError(str(error)) from None


@breaks("ERR-10", tells=r"it does not name stage \d", also=("ERR-6",))
class StageUnnamed(Step):
    """Errors do not say which stage failed."""

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        self._failure = StageError(f"{self._name}: a stage failed: {error}")
        self._failure.__cause__ = error


@breaks("ERR-10", tells="another rank failed; its message does not name stage")
class OthersNotTold(Step):
    """Other ranks report that a rank failed, but not which and where."""

    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except PeerError:
            raise PeerError("another rank failed") from None


@breaks(
    "ERR-10", status="hung", tells=r"rank \d waits forever, when in step \d .* raises.* and rank \d raised"
)
class OthersWait(Step):
    """Ranks that learn of another's error wait forever."""

    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except PeerError:
            threading.Event().wait()
            raise


@breaks("ERR-10", tells="the loss function raises.*no rank raised")
class LossSwallowed(ReferencePipeline):
    """A loss that cannot be computed counts as zero."""

    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        loss = super().make_loss(batch)

        def swallowed(output: Any, target: Any) -> Tensor:
            try:
                return loss(output, target)
            except Exception:
                found: Tensor = output.sum() * 0.0
                return found

        return swallowed


@breaks("ERR-13", status="crashed", tells=r"rank \d died \(exit code 7\), when", also=("ERR-10",))
class DiesOfErrors(Step):
    """A stage that fails ends its process."""

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        os._exit(7)


# ---------------------------------------------------------------------------------- after an error


class _Spoilt:
    """A process's memory of an error."""

    failed = False


@breaks(
    "ERR-11", status="error", tells="a new pipeline fails: RuntimeError: the engine is in an unknown state"
)
class NothingWorksAgain(ReferencePipeline):
    """After an error the process must be restarted."""

    def __init__(self, plan: Plan) -> None:
        if _Spoilt.failed:
            raise RuntimeError("the engine is in an unknown state; restart the process")
        super().__init__(plan)

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            return super().run(mode, batch)
        except (PipelineError, ValueError):
            _Spoilt.failed = True
            raise


@breaks("ERR-11", tells="a new pipeline is wrong: .*gradient")
class ErrorLeavesTrace(ReferencePipeline):
    """After an error all gradients of the process are halved."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            return super().run(mode, batch)
        except (PipelineError, ValueError):
            _Halved.failed = True
            raise

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return work if not _Halved.failed else _halved(work)


class _Halved:
    """A process's memory of an error, for another fault."""

    failed = False


def _halved(work: Work) -> Work:
    return replace(work, divisor=2 * work.divisor)


@breaks("ERR-11", schedule="GPipe", tells="a new pipeline is wrong: .*gradient")
class LossesOfAbortedStep(ReferencePipeline):
    """Losses that wait for their backward belong to the process: the next step goes backward from an aborted one's."""

    waiting: ClassVar[list[Tensor]] = []

    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        function = super().make_loss(batch)

        def kept(output: Any, target: Any) -> Tensor:
            self.waiting.append(function(output, target))
            return self.waiting[-1]

        return kept

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        left = [*self.waiting]
        result = super().run(mode, batch)
        self.waiting.clear()
        for loss in left:
            with suppress(RuntimeError):  # of those that had their backward before the error
                loss.backward()  # type: ignore[no-untyped-call]
        return result


@breaks("ERR-11", tells="a new pipeline is wrong: .*gradient")
class GradientsDroppedForGood(ReferencePipeline):
    """After an error, hooks on the parameters drop what gradients still come, and stay there."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            return super().run(mode, batch)
        except (PipelineError, ValueError):
            for parameter in self.own_parameters():
                if parameter.requires_grad:
                    parameter.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
            raise
