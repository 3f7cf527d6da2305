"""Features that an implementation shows although it does not claim them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeconform.adapter import Capabilities, Feature
from pipeconform.observe.observation import Observation, StepShown

__all__ = ["returned_unclaimed"]


def returned_unclaimed(capabilities: Capabilities, shown: Iterable[Observation]) -> frozenset[Feature]:
    """The features that the ranks' results show without being claimed."""
    found = {feature for one in shown for step in one.steps for feature in _returned(step)}
    return frozenset(found - capabilities.features)


def _returned(step: StepShown) -> Iterator[Feature]:
    if step.output is not None:
        yield Feature.OUTPUTS
    if step.losses:
        yield Feature.MICROBATCH_LOSSES
    if step.input_gradients is not None and any(one is not None for one in step.input_gradients):
        yield Feature.INPUT_GRADIENTS
    if any(step.parameters.values()) or any(step.buffers.values()):
        yield Feature.STATE
