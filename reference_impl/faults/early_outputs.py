"""Faults in what a split model returns besides the result of its last stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..adapter import ReferencePipeline
from ..stage import Stage
from ..tracing import TracedStage
from .fault import breaks


class _Early(ReferencePipeline):
    """Changes what a traced model returns besides its result."""

    def changed(self, outputs: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """What is merged instead of the outputs of the microbatches, which are tuples."""
        raise NotImplementedError

    def make_output(self, outputs: Sequence[Any]) -> Any:
        several = self.traced is not None and all(isinstance(one, tuple) and len(one) > 1 for one in outputs)
        return super().make_output(self.changed(outputs) if several else outputs)


@breaks("TRC-7")
class EarlyOutputsLost(_Early):
    """Only what the last stage computed is returned."""

    def changed(self, outputs: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        return [one[0] for one in outputs]


@breaks("TRC-7")
class EarlyOutputsOfOne(_Early):
    """What an earlier stage computed of the first microbatch is returned for all."""

    def changed(self, outputs: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        return [
            (one[0], *(first[: len(own)] for first, own in zip(outputs[0][1:], one[1:], strict=True)))
            for one in outputs
        ]


class _CutOff(TracedStage):
    """The last stage is given what it returns besides its result without its graph."""

    def forward(self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], **how: Any) -> Any:
        if not how.get("boundary") and isinstance(inputs, tuple):
            inputs = (inputs[0], *(one.detach() for one in inputs[1:]))
        return super().forward(microbatch, inputs, kwargs, **how)


class _TakingForLosses(TracedStage):
    """An output of one element for which no gradient comes back is differentiated as a loss is."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        outputs = self._in_flight[microbatch].outputs
        seeded = [
            torch.ones_like(output)
            if given is None and output.requires_grad and output.numel() == 1
            else given
            for given, output in zip(gradients, outputs, strict=True)
        ]
        return super().backward(microbatch, seeded if len(outputs) > 1 else gradients)


class _Staged(ReferencePipeline):
    """Has other stages of a traced model."""

    traced_stage: ClassVar[type[TracedStage]]

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        if self.traced is None:
            return super().make_stage(index, module)
        return self.traced_stage(module, index=index, info=self.traced.info, batch_dim=self.plan.batch_dim)


@breaks("TRC-7")
class EarlyOutputsCutOff(_Staged):
    """What an earlier stage computed reaches the last one without its graph, and its gradient is lost."""

    traced_stage = _CutOff


@breaks("TRC-7")
class EarlyOutputsDifferentiated(_Staged):
    """An early output of one element is differentiated with the weight 1, besides the loss."""

    traced_stage = _TakingForLosses
