"""Faults of driving stages by hand: what is not due is done, is told in the wrong words, or leaves a trace."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..errors import OrderError
from ..operations import ChunkOperations
from .fault import breaks


class _Obliging(ChunkOperations):
    def backward(self, microbatch: int, *, full: bool = True) -> None:
        try:
            super().backward(microbatch, full=full)
        except OrderError:
            return


class _OrderIgnored(ReferencePipeline):
    operations_type = _Obliging


@breaks("ERR-12", tells="was asked for the backward .* and did it; expected: an error")
class OrderIgnored(ReferenceAdapter):
    """A backward that is not due is passed over.

    A backward that is not due is passed over in silence.
    """

    pipeline = _OrderIgnored


class _Willing(ChunkOperations):
    def forward(self, microbatch: int) -> None:
        known: dict[int, Any] = vars(self).setdefault("known", {})
        key = (self._s, microbatch)
        if self._stage._due.get(microbatch) == "backward":
            self._stage._due.pop(microbatch)
            self._step.inputs[key] = known[microbatch]
        known[microbatch] = self._step.inputs.get(key)
        super().forward(microbatch)


class _ForwardsRedone(ReferencePipeline):
    operations_type = _Willing


@breaks("ERR-12", tells="was asked for the forward a second time .* and did it")
class ForwardsRedone(ReferenceAdapter):
    """A forward runs as often as it is asked for."""

    pipeline = _ForwardsRedone


class _Impatient(ChunkOperations):
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


class _BufferReadTooEarly(ReferencePipeline):
    operations_type = _Impatient


@breaks(
    "ERR-12", schedule="GPipe", tells="the backward before the gradient of its output is there .* and did it"
)
class BufferReadTooEarly(ReferenceAdapter):
    """A gradient is read before it is there.

    A backward before its gradient is there takes what stands in the empty buffer.
    """

    pipeline = _BufferReadTooEarly


class _Hasty(ChunkOperations):
    def finish(self) -> None:
        self._step.link.wait()
        self._stage.clear()


class _EndsUnfinished(ReferencePipeline):
    operations_type = _Hasty


@breaks(
    "ERR-12",
    status="error",
    tells="the end of the step before the backward .* and did it; expected: an error",
)
class EndsUnfinished(ReferenceAdapter):
    """A step ends before it is through.

    A step ends when it is told to, and forgets what is still due.
    """

    pipeline = _EndsUnfinished


class _Wrapping(ChunkOperations):
    def _require_known(self, microbatch: int, asked: str) -> None:
        if microbatch < 0:
            super()._require_known(microbatch, asked)


class _RangeUnchecked(ReferencePipeline):
    operations_type = _Wrapping


@breaks("ERR-12", status="hung")
class RangeUnchecked(ReferenceAdapter):
    """Microbatches that there are not are waited for.

    Whether a step has a microbatch shows when its input comes, or does not.
    """

    pipeline = _RangeUnchecked


class _Curt(ChunkOperations):
    def forward(self, microbatch: int) -> None:
        try:
            super().forward(microbatch)
        except OrderError:
            raise KeyError(microbatch) from None


class _NumberOnly(ReferencePipeline):
    operations_type = _Curt


@breaks("ERR-12", tells=r"the forward .* and said only '\d'; expected: words")
class NumberOnly(ReferenceAdapter):
    """The error is a bare number.

    The error about a forward that is not due is a bare number.
    """

    pipeline = _NumberOnly


class _Dropping(ChunkOperations):
    def backward(self, microbatch: int, *, full: bool = True) -> None:
        try:
            super().backward(microbatch, full=full)
        except OrderError:
            for parameter in self._stage.module.parameters():
                parameter.grad = None
            raise


class _RefusalDropsGradients(ReferencePipeline):
    operations_type = _Dropping


@breaks("ERR-12", tells="gradient")
class RefusalDropsGradients(ReferenceAdapter):
    """A refused backward drops gradients.

    A backward that is refused drops the gradients that were there.
    """

    pipeline = _RefusalDropsGradients
