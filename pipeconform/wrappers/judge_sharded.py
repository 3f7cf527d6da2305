"""Judgements about sharded training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeconform.bounds.numerics import magnitude
from pipeconform.judge.finding import Finding
from pipeconform.observe.array import Array
from pipeconform.wrappers.judge import WrapperEvidence, differing, is_right

__all__ = ["is_of", "trains_like_ddp"]

_HALF = 2.0**-26
"""Half of a double's digits: rounding grows from step to step, but not beyond that in a few steps."""


def trains_like_ddp(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Check that every step equals that of the unwrapped module, and that the final parameters equal those of DDP."""
    found = list(is_right(evidence))
    yield from found
    if found:
        return
    for shown in evidence.shown:
        for name, mismatch in differing(evidence, shown.beside, shown.final, bound=_room):
            text = f"rank {shown.rank}: {name} after training is not what DDP has\n{mismatch.describe()}"
            yield Finding(kind="trained apart", message=text, rank=shown.rank, mismatch=mismatch)
            return


def _room(value: Array) -> Array:
    most = _HALF * (1.0 + magnitude([value]))
    return Array("float64", value.shape, np.full(value.shape, most).tobytes())


def is_of(evidence: WrapperEvidence, combination: dict[str, str]) -> bool:
    """Whether the case has all options of a combination."""
    case, sharding = evidence.case, evidence.case.options.sharding
    told = {
        "module": case.module,
        "ranks": str(case.ranks),
        "strategy": "" if sharding is None else sharding.strategy,
        "nesting": "" if sharding is None else sharding.nesting,
        "original_parameters": "" if sharding is None else str(sharding.original_parameters),
        "forward_prefetch": "" if sharding is None else str(sharding.forward_prefetch),
        "backward_prefetch": "" if sharding is None else str(sharding.backward_prefetch),
        "optimizer": case.optimizer,
        "compiled": str(case.compiled),
    }
    return all(told.get(axis) == value for axis, value in combination.items())
