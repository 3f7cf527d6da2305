"""Engines that are wrong, or show nothing, and do not claim what would have them judged."""

from __future__ import annotations

import dataclasses

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline
from pipeconform.reference_impl.containers import map_leaves
from pipeconform.reference_impl.runtime import Yield
from torch import Tensor

from pipeconform.adapter import Batch, Description, Feature, Mode, StepResult


def _without(description: Description, *features: Feature) -> Description:
    claimed = description.capabilities
    return dataclasses.replace(
        description, capabilities=dataclasses.replace(claimed, features=claimed.features - {*features})
    )


class _TriplingPipeline(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        if result.output is None:
            return result
        tripled = map_leaves(lambda leaf: leaf * 3 if isinstance(leaf, Tensor) else leaf, result.output)
        return dataclasses.replace(result, output=tripled)


class Triples(ReferenceAdapter):
    """Every output is three times what it should be, and none is claimed to be returned."""

    pipeline = _TriplingPipeline

    def describe(self) -> Description:
        return _without(super().describe(), Feature.OUTPUTS)


class _LossOnlyPipeline(ReferencePipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        return dataclasses.replace(super().make_result(mode, batch, done), output=None)


class LossOnly(ReferenceAdapter):
    """As right as the reference; its callers get losses only."""

    pipeline = _LossOnlyPipeline

    def describe(self) -> Description:
        return _without(super().describe(), Feature.OUTPUTS)


class _TripledLossPipeline(_LossOnlyPipeline):
    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        losses = None if result.losses is None else [loss * 3 for loss in result.losses]
        return dataclasses.replace(result, losses=losses)


class TripledLoss(LossOnly):
    """Callers get losses only, of outputs that are three times what they should be."""

    pipeline = _TripledLossPipeline


class ReturnsNothing(LossOnly):
    """Evaluates, and gives its callers nothing."""

    def describe(self) -> Description:
        found = super().describe()
        only = tuple(claim for claim in found.capabilities.schedules if not claim.trains)
        return dataclasses.replace(
            found, capabilities=dataclasses.replace(found.capabilities, schedules=only)
        )
