"""Faults of stages driven by hand: calls that are not due are carried out, badly reported, or leave a trace."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import OrderError
from ..operations import ChunkOperations
from .fault import breaks


@breaks("ERR-12", tells="was asked for the backward .* and did it; expected: an error")
class OrderIgnored(ChunkOperations):
    """A backward that is not due is silently ignored."""

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        try:
            super().backward(microbatch, full=full)
        except OrderError:
            return


@breaks("ERR-12", tells="was asked for the forward a second time .* and did it")
class ForwardsRedone(ChunkOperations):
    """A forward runs as often as it is called."""

    def forward(self, microbatch: int) -> None:
        known: dict[int, Any] = vars(self).setdefault("known", {})
        key = (self._s, microbatch)
        if self._stage._due.get(microbatch) == "backward":
            self._stage._due.pop(microbatch)
            self._step.inputs[key] = known[microbatch]
        known[microbatch] = self._step.inputs.get(key)
        super().forward(microbatch)


@breaks(
    "ERR-12", schedule="GPipe", tells="the backward before the gradient of its output is there .* and did it"
)
class BufferReadTooEarly(ChunkOperations):
    """A backward before its gradient is there takes what is in the empty buffer."""

    def receive_backward(self, microbatch: int) -> None:
        self._step.receive_gradient(self._s, microbatch)

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        gradients, key = self._step.output_gradients, (self._s, microbatch)
        saved = self._stage._in_flight.get(microbatch)
        if saved is not None and key not in gradients:
            gradients[key] = [_nothing_like(output) for output in saved.outputs]
        super().backward(microbatch, full=full)


def _nothing_like(output: Tensor) -> Tensor:
    return output.detach().new_zeros(output.shape)


@breaks(
    "ERR-12",
    status="error",
    tells="the end of the step before the backward .* and did it; expected: an error",
)
class EndsUnfinished(ChunkOperations):
    """A step ends on request and forgets what is still due."""

    def finish(self) -> None:
        self._step.link.wait()
        self._stage.clear()


@breaks("ERR-12", status="hung")
class RangeUnchecked(ChunkOperations):
    """The number of a microbatch is not checked: the stage waits for the input of one that does not exist."""

    def _require_known(self, microbatch: int, asked: str) -> None:
        if microbatch < 0:
            super()._require_known(microbatch, asked)


@breaks("ERR-17", tells=r"the forward .* and said only '\d'; expected: words")
class NumberOnly(ChunkOperations):
    """The error about a forward that is not due is a bare number."""

    def forward(self, microbatch: int) -> None:
        try:
            super().forward(microbatch)
        except OrderError:
            raise KeyError(microbatch) from None


@breaks("ERR-12", tells="gradient")
class RefusalDropsGradients(ChunkOperations):
    """A backward that is refused drops the gradients that were there."""

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        try:
            super().backward(microbatch, full=full)
        except OrderError:
            for parameter in self._stage.module.parameters():
                parameter.grad = None
            raise
