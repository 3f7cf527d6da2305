"""What computations and transfers cost in the simulator, in a time unit of the caller's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeconform.errors import UsageError
from pipeconform.schedule.actions import Kind
from pipeconform.schedule.table import Table

PerStage = float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Durations per stage and microbatch (one number, or one per stage), and the price of a transfer.

    A full backward takes ``input_grad + weight_grad``; an overlapped pair takes the sum of its parts times
    ``pair_factor``. A transfer takes ``latency + message_bytes / bandwidth``, however many there are at
    the same time.
    """

    forward: PerStage = 1.0
    input_grad: PerStage = 1.0
    weight_grad: PerStage = 1.0
    pair_factor: float = 1.0
    latency: float = 0.0
    """Time units."""
    message_bytes: float = 0.0
    """Bytes that cross between two stages in one transfer."""
    bandwidth: float = math.inf
    """Bytes per time unit."""
    overlap: bool = True
    """Whether the sender computes while it sends; otherwise a send occupies its rank for its volume."""

    def __post_init__(self) -> None:
        for name in ("forward", "input_grad", "weight_grad"):
            value = getattr(self, name)
            values = (value,) if isinstance(value, int | float) else tuple(value)
            if not values or not all(math.isfinite(x) and x >= 0 for x in values):
                raise UsageError(f"cost {name}={value!r}; expected finite numbers ≥ 0")
            if not isinstance(value, int | float):
                object.__setattr__(self, name, values)
        if self.bandwidth <= 0 or min(self.latency, self.message_bytes, self.pair_factor) < 0:
            raise UsageError("bandwidth must be > 0; latency, message_bytes and pair_factor must be ≥ 0")

    @property
    def volume_time(self) -> float:
        """Time units a message occupies a link."""
        return self.message_bytes / self.bandwidth

    def delay(self, table: Table) -> float:
        """Time units from the end of a send, or of a computation in a table without sends, to its arrival."""
        in_send = table.has_communication and not self.overlap
        return self.latency + (0.0 if in_send else self.volume_time)

    def durations(self, table: Table) -> npt.NDArray[np.float64]:
        """The duration of every row: computations, and sends where they do not overlap.

        Raises:
            UsageError: A cost is given per stage, but not for as many stages as the table has.
        """
        forward, input_grad, weight_grad = (
            self._per_stage(name, table.num_stages) for name in ("forward", "input_grad", "weight_grad")
        )
        by_kind = np.zeros((len(Kind), table.num_stages))
        by_kind[Kind.F] = forward
        by_kind[Kind.I] = input_grad
        by_kind[Kind.W] = weight_grad
        by_kind[Kind.B] = input_grad + weight_grad
        if not self.overlap:
            by_kind[[Kind.SEND_F, Kind.SEND_B]] = self.volume_time
        stages = np.minimum(table.stages, table.num_stages - 1)  # the verifier reports stages out of range
        durations: npt.NDArray[np.float64] = by_kind[table.kinds, stages]
        return durations

    def _per_stage(self, name: str, num_stages: int) -> npt.NDArray[np.float64]:
        value = getattr(self, name)
        if isinstance(value, tuple) and len(value) != num_stages:
            raise UsageError(f"cost {name} is given for {len(value)} stages; the table has {num_stages}")
        return np.broadcast_to(np.asarray(value, np.float64), (num_stages,))


UNIT = Costs()
"""F = I = W = 1, B = 2, free communication."""
