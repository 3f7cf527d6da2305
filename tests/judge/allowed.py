"""Changes of the evidence of `tests.judge.grid` that are not yet faults: bounds of values and of numbers."""

from __future__ import annotations

from typing import Any

import torch

from pipeconform.case.case import Load
from pipeconform.judge.data_parallel import replicas_of
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.traffic.communication import DESCRIPTION_BYTES
from pipeconform.observe.array import Array
from pipeconform.observe.observation import NUM_ROUNDS, WARM_UP, Answered, Held
from pipeconform.oracle.full_model import Bounds
from tests.judge.spoiling import Allowed, Path, example

__all__ = ["Within"]

_BOUNDS = {
    "losses": "loss_bounds",
    "gradients": "gradient_bounds",
    "parameters": "parameter_bounds",
    "buffers": "buffer_bounds",
    "input_gradients": "input_gradient_bounds",
    "kwarg_gradients": "kwarg_gradient_bounds",
}
"""By field of a step the reference's field with the same shape."""
_LEVELS: tuple[Bounds, ...] = ("reassociated", "running")


class Within(Allowed):
    """Of one rank's record: the bounds of the reference, for its replica and its parts."""

    def __init__(self, made: Evidence, rank: int) -> None:
        self._made, self._rank = made, rank
        self._own = next(
            (one for one in replicas_of(made) if rank in {shown.rank for shown in one.shown}), made
        )

    def bound(self, path: Path) -> Array | None:
        """The larger of the reference's bounds."""
        if len(path) < 3 or path[0] != "steps":
            return None
        _, step, name, *rest = path
        assert isinstance(step, int)
        if name == "gradient_norm":
            return self._norm(step)
        if name == "loss":
            return self._total(step)
        if name == "output":
            return None if self._made.case.model.merged else self._output(step, rest)
        if name not in _BOUNDS or isinstance(self._made.case.program[step], Load):
            return None
        if name == "losses":
            held = self._made.shown[self._rank].steps[step].microbatches
            rest = [index if held is None else held[int(index)] for index in rest]
        found: list[Array] = []
        for level in _LEVELS:
            value: Any = getattr(self._own.bounded(level).steps[step], _BOUNDS[str(name)])
            try:
                for key in rest:
                    value = value[key]
            except (KeyError, IndexError):
                continue
            if isinstance(value, Array):
                found.append(value)
        if not found:
            return None
        return Array.of(torch.stack([one.tensor() for one in found]).amax(0))

    def least(self, field: str) -> int:
        """Counts of what lives on grow by one in every round, bytes by a description's."""
        if field.startswith("Census."):
            return NUM_ROUNDS - WARM_UP
        return (
            3 * DESCRIPTION_BYTES + 1 if field == "Operation.num_bytes" else 1
        )  # three microbatches of a step

    def more(self, kind: Any, path: Path) -> tuple[Any, ...]:
        """Leftovers of a forward that exists, and an answer without an error."""
        if kind is Held:
            step = self._made.shown[self._rank].steps[int(path[1])]
            return tuple(Held(call.call, -1, 2) for call in step.forwards) or (example(kind),)
        if kind is Answered:
            return (Answered(stage=1, microbatch=0, call="something", error=None),)
        return super().more(kind, path)

    def _output(self, step: int, rest: Path) -> Array | None:
        """Of one leaf: the bounds of the microbatches that the rank holds, merged."""
        shown = self._made.shown[self._rank].steps[step]
        bounds = self._own.bounded("running").steps[step].output_bounds
        assert shown.output is not None
        held = range(len(bounds)) if shown.microbatches is None else shown.microbatches
        (place,) = [one for one in rest if isinstance(one, int)] or [0]
        leaves = [bounds[k][place].tensor() for k in held]
        return Array.of(torch.cat(leaves, self._made.case.model.batch_dim)) if leaves else None

    def _norm(self, step: int) -> Array:
        """Of n squares summed in whatever order, n unit round-offs and a few; of the norm."""
        gradients = [
            array.tensor()
            for own in self._made.expected.steps[step].gradients.values()
            for array in own.values()
            if array is not None
        ]
        norm = torch.cat([one.double().reshape(-1) for one in gradients]).norm()
        count = sum(one.numel() for one in gradients)
        return Array.of((count + 8) * 2.0**-52 * norm)

    def _total(self, step: int) -> Array:
        """Generous: the sum of the losses' bounds, and of m + 8 round-offs."""
        known = self._made.bounded("running").steps[step]
        losses = torch.stack([one.tensor().double() for one in known.losses])
        bounds = torch.stack([one.tensor().double() for one in known.loss_bounds])
        return Array.of(bounds.sum() + (len(losses) + 8) * 2.0**-52 * 4 * losses.abs().sum())
