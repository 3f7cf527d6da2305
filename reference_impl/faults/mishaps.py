"""Faults of what follows an error: words and causes that are lost, ranks that wait or die, nothing that works again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult
from pipeconform.schedule import Action

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..batches import BatchCheck, sizes_in
from ..containers import leaves_of
from ..errors import PeerError, PipelineError, StageError
from ..runtime import Step, Work, Yield
from ..stage import Stage
from .fault import breaks

# --------------------------------------------------------------------------- values and gradients


class _PatchedStage(Stage):
    """What is no tensor is handed on as zeros."""

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


class _NothingPatched(ReferencePipeline):
    stage_type = _PatchedStage


@breaks("ERR-5", tells="None|a text")
class NothingPatched(ReferenceAdapter):
    """Zeros stand in for nothing.

    Zeros take the place of what is no tensor.
    """

    pipeline = _NothingPatched


class _RefillingStage(Stage):
    """Hands on the tensor before once more, where there is none."""

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


class _MissingRefilled(ReferencePipeline):
    stage_type = _RefillingStage


@breaks("ERR-5", tells="a tensor too few.*nobody raised")
class MissingRefilled(ReferenceAdapter):
    """The input is handed on.

    A stage that hands on nothing hands on its input.
    """

    pipeline = _MissingRefilled


class _SkippingStep(Step):
    """A backward that fails is skipped: its gradients are zeros."""

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


class _BackwardsSkipped(ReferencePipeline):
    step_type = _SkippingStep


@breaks("ERR-6", tells="nobody raised; promised is StageError")
class BackwardsSkipped(ReferenceAdapter):
    """Backwards are skipped.

    A backward that fails leaves zeros and no word.
    """

    pipeline = _BackwardsSkipped


class _BriefStep(Step):
    """Says which stage failed, and not with which microbatch."""

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        super()._fail(s, k, what, error)
        self._failure = StageError(f"{self._name}, stage {s}, {what}: {error}")
        self._failure.__cause__ = error


class _MicrobatchUnnamed(ReferencePipeline):
    step_type = _BriefStep


@breaks("ERR-6", tells=r"for microbatch (\d).*it does not name microbatch \1")
class MicrobatchUnnamed(ReferenceAdapter):
    """Errors do not name the microbatch."""

    pipeline = _MicrobatchUnnamed


# ----------------------------------------------------------------------------------------- batches


class _IndexCheck(BatchCheck):
    def check(self, batch: Batch) -> None:
        try:
            super().check(batch)
        except ValueError:
            raise IndexError("list index out of range") from None


class _BatchOutOfRange(ReferencePipeline):
    check_type = _IndexCheck


@breaks("ERR-7", tells="raised IndexError")
class BatchOutOfRange(ReferenceAdapter):
    """An IndexError is raised.

    A batch that cannot be split is an IndexError.
    """

    pipeline = _BatchOutOfRange


class _EmptyCheck(BatchCheck):
    def check(self, batch: Batch) -> None:
        """Whatever comes is tried."""


class _BatchSkipped(ReferencePipeline):
    check_type = _EmptyCheck

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            sizes_in(batch)
        except ValueError:
            return StepResult()
        return super().run(mode, batch)


@breaks("ERR-7", tells="nobody raised; promised is ValueError")
class BatchSkipped(ReferenceAdapter):
    """The batch is skipped.

    A batch that cannot be split is skipped.
    """

    pipeline = _BatchSkipped


# -------------------------------------------------------------------------------------- exceptions


class _BareStep(Step):
    """Lets the model's own exception pass as it is; other ranks are told all the same."""

    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except StageError as error:
            raise (error.__cause__ or error) from None


class _NotWrapped(ReferencePipeline):
    step_type = _BareStep


@breaks("ERR-10", tells="raised .*DeliberateError: .*promised is StageError")
class ExceptionsNotWrapped(ReferenceAdapter):
    """Exceptions pass without their place.

    The model's own exception passes bare, without its place.
    """

    pipeline = _NotWrapped


class _CauselessStep(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except StageError as error:
            raise StageError(str(error)) from None


class _CauseLost(ReferencePipeline):
    step_type = _CauselessStep


@breaks("ERR-10", tells="it does not have the model's own exception as its cause")
class CauseLost(ReferenceAdapter):
    """The original is not the cause.

    The error does not have the original as its cause.
    """

    pipeline = _CauseLost


class _PlacelessStep(Step):
    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        self._failure = StageError(f"{self._name}: a stage failed: {error}")
        self._failure.__cause__ = error


class _StageUnnamed(ReferencePipeline):
    step_type = _PlacelessStep


@breaks("ERR-10", tells=r"it does not name stage \d")
class StageUnnamed(ReferenceAdapter):
    """Errors do not name the stage.

    Errors do not say which stage failed.
    """

    pipeline = _StageUnnamed


class _SecretiveStep(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except PeerError:
            raise PeerError("another rank failed") from None


class _OthersNotTold(ReferencePipeline):
    step_type = _SecretiveStep


@breaks("ERR-10", tells="another rank failed; the cause is not among its words")
class OthersNotTold(ReferenceAdapter):
    """Other ranks do not learn who failed.

    Other ranks say that somebody failed, not who and where.
    """

    pipeline = _OthersNotTold


class _WaitingStep(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        try:
            return super().run(actions)
        except PeerError:
            threading.Event().wait()
            raise


class _OthersWait(ReferencePipeline):
    step_type = _WaitingStep


@breaks(
    "ERR-10", status="hung", tells=r"rank \d waits for ever, when in step \d .* raises.* and rank \d raised"
)
class OthersWait(ReferenceAdapter):
    """Other ranks wait for ever.

    Ranks that learn of another's error wait for ever.
    """

    pipeline = _OthersWait


class _SwallowingLoss(ReferencePipeline):
    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        loss = super().make_loss(batch)

        def swallowed(output: Any, target: Any) -> Tensor:
            try:
                return loss(output, target)
            except Exception:
                found: Tensor = output.sum() * 0.0
                return found

        return swallowed


@breaks("ERR-10", tells="the loss function raises.*nobody raised")
class LossSwallowed(ReferenceAdapter):
    """A loss that fails is zero.

    A loss that cannot be computed counts as zero.
    """

    pipeline = _SwallowingLoss


class _DyingStep(Step):
    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        os._exit(7)


class _Dies(ReferencePipeline):
    step_type = _DyingStep


@breaks("ERR-13", status="crashed", tells=r"rank \d died \(exit code 7\), when")
class DiesOfErrors(ReferenceAdapter):
    """The process ends.

    A stage that fails ends its process.
    """

    pipeline = _Dies


# ---------------------------------------------------------------------------------- after an error


class _Spoilt:
    """What a process remembers of an error."""

    failed = False


class _SpoiltPipeline(ReferencePipeline):
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


@breaks(
    "ERR-11", status="error", tells="a new pipeline fails: RuntimeError: the engine is in an unknown state"
)
class NothingWorksAgain(ReferenceAdapter):
    """The process must be restarted.

    After an error the process must be restarted.
    """

    pipeline = _SpoiltPipeline


class _ScaledAfterwards(ReferencePipeline):
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
    """What another fault's process remembers of an error."""

    failed = False


def _halved(work: Work) -> Work:
    return replace(work, divisor=2 * work.divisor)


@breaks("ERR-11", tells="a new pipeline is wrong: .*gradient")
class ErrorLeavesTrace(ReferenceAdapter):
    """The error leaves a trace.

    After an error all gradients of the process are half of what they are.
    """

    pipeline = _ScaledAfterwards
