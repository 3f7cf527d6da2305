"""Faults that do not show in an output of the same case: they show in other values, in other cases, or in omissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from pipeconform.adapter import Batch, Description, Feature, Mode, StepResult

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..containers import map_leaves
from ..runtime import Work, Yield
from ..stage import Stage
from .fault import breaks


@breaks("FWD-4")
class SecondGradientHalved(Stage):
    """The second tensor of a boundary gets half its gradient; all values are right."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        first, *others = gradients
        return super().backward(microbatch, [first, *(None if g is None else g * 0.5 for g in others)])


@breaks("FWD-9")
class KwargsGradientHalved(Stage):
    """Stages with keyword arguments halve their gradients; all values are right."""

    with_kwargs = False

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        self.with_kwargs = bool(kwargs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self.with_kwargs:
            gradients = [None if g is None else g * 0.5 for g in gradients]
        return super().backward(microbatch, gradients)


@breaks("LIF-1")
class EvaluationInTrainingMode(Stage):
    """Evaluation computes no gradient, but leaves the modules in training mode."""

    @contextmanager
    def step(self, *, training: bool) -> Iterator[None]:
        with super().step(training=True):
            yield


@breaks("TRN-7")
class KwargsCutOff(ReferencePipeline):
    """Keyword arguments that require a gradient get none, because they reach their stages without their graph."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        cut = {s: [map_leaves(_cut, dict(own)) for own in rows] for s, rows in work.kwargs.items()}
        return replace(work, kwargs=cut)


@breaks("TRN-2", also=("FWD-1",))
class NothingHeld(ReferencePipeline):
    """The last rank returns empty results and says that they belong to no microbatch."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        if result.output is None:
            return result

        def none_of(leaf: Any) -> Any:
            return leaf.narrow(batch.batch_dim, 0, 0) if isinstance(leaf, Tensor) else leaf

        losses = None if result.losses is None else ()
        return replace(result, output=map_leaves(none_of, result.output), losses=losses, microbatches=())


class _LossesEmpty(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        return result if result.losses is None else replace(result, losses=())


@breaks("TRN-2")
class LossesEmpty(ReferenceAdapter):
    """The losses are an empty list, and there is no mean loss.

    Losses of single microbatches are not claimed.
    """

    pipeline = _LossesEmpty

    def describe(self) -> Description:
        """Claim everything but one loss per microbatch."""
        return _without(super().describe(), Feature.MICROBATCH_LOSSES)


class _UnevenRefusedAlone(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        uneven = batch.target.shape[batch.batch_dim] % batch.num_microbatches
        if uneven and 0 in self.modules:
            raise ValueError("the batch is not a multiple of the number of microbatches")
        return super().run(mode, batch)


@breaks("FWD-24", status="error", tells=r"rank 0 raised ValueError.*; rank \d raised no error of its own")
class UnevenRefusedAlone(ReferenceAdapter):
    """The first rank alone refuses an uneven batch.

    Uneven batches are not claimed; the other ranks see a closed connection.
    """

    pipeline = _UnevenRefusedAlone

    def describe(self) -> Description:
        """Claim everything but uneven batches."""
        return _without(super().describe(), Feature.UNEVEN_BATCHES)


@breaks("FWD-5", source="https://github.com/pytorch/PiPPy/issues/945")
class GradientAskedForAll(Stage):
    """The receiver marks every floating tensor as requiring a gradient, whatever the sender said."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if self.index and differentiate:
            inputs = map_leaves(_asking, inputs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


def _asking(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.requires_grad:
        return leaf.detach().requires_grad_()
    return leaf


def _without(description: Description, feature: Feature) -> Description:
    claimed = description.capabilities
    return replace(description, capabilities=replace(claimed, features=claimed.features - {feature}))


def _cut(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf
