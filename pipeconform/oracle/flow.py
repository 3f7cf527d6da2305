"""Records what passes between the oracle's stages, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs
from torch import Tensor, nn

from pipeconform.observe.array import Array
from pipeconform.observe.attached import listen
from pipeconform.observe.gradients import Gradients, tensors_of
from pipeconform.observe.observation import Flow

if TYPE_CHECKING:
    from pipeconform.bounds.running_error import RunningError

__all__ = ["OracleFlow"]


class OracleFlow:
    """The record of what passes between the oracle's stages, by microbatch."""

    def __init__(self, analysis: RunningError | None) -> None:
        self._analysis = analysis
        self.gradients = Gradients(self._read)
        self._values: list[Flow] = []
        self._microbatch: list[int] = []
        self.at = 0

    def watch(self, stages: Sequence[nn.Module], *, whole: bool) -> None:
        """Record what passes these stages from now on; for a `whole` model, what passes its parts."""
        if not whole:
            for stage in stages:
                stage.timeline = self.gradients  # type: ignore[assignment]  # a listener
            return

        def ended(part: int, inputs: tuple[Any, ...], output: Any) -> None:
            self.forward_ended(part, inputs[:1], output)  # what else it is given comes from no other part

        for number, part in enumerate(stages[0].get_submodule("stages").children()):
            listen(part, number, watcher=self.gradients, ended=ended)

    def forward_ended(self, stage: int, inputs: tuple[Any, ...], output: Any) -> None:
        """Record both ends of a forward and its microbatch; calls are numbered in order."""
        self.gradients.passed(stage, output)
        self._microbatch.append(self.at)
        for kind, value in (("input", inputs), ("output", output)):
            for position, tensor in enumerate(tensors_of(value)):
                one = Flow(stage, self.at, kind, position, *self._read(tensor))  # type: ignore[arg-type]  # literals
                self._values.append(one)

    def take(self) -> tuple[Flow, ...]:
        """Return what was recorded, with microbatches in place of call numbers."""
        gradients = [structs.replace(one, call=self._microbatch[one.call]) for one in self.gradients.take()]
        values, self._values = self._values, []
        return (*values, *gradients)

    def _read(self, tensor: Tensor) -> tuple[Array, Array | None]:
        if self._analysis is None:
            return Array.of(tensor), None
        with self._analysis.aside():
            return Array.of(tensor), Array.of(self._analysis.bound(tensor))
