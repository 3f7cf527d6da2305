"""Gradients of bfloat16 parameters that are added up in float32 (TRN-26)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeconform.case.case import Train, Zero
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.observe.array import Array

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["sums_are_exact"]

_EXACT = 2.0**-20
"""What float32 arithmetic may be off by, relatively: divisions by the number of replicas, one or more."""
_ROUNDED = 2.0**-8
"""The same where the constant by which every sum is multiplied is no power of two, so that bfloat16 rounds it."""


def sums_are_exact(evidence: Evidence) -> Iterator[Finding]:
    """The gradients of every stage of an exact model are in float32, and nothing was lost when they were added up.

    They are computed here from the inputs alone: see `pipeconform.case.build.exact`.
    """
    from pipeconform.case.build import data

    case = evidence.case
    if not case.model.is_exact:
        return
    right, replicas = 0.0, range(case.world.num_replicas)
    for expected in evidence.expected.steps:
        step = case.program[expected.step]
        if isinstance(step, Zero):
            right = 0.0
        if not isinstance(step, Train):
            continue
        samples = [data.make_batch(case, expected.step, replica=d).args[0][..., 0] for d in replicas]
        total = float(sum(one.double().sum() for one in samples)) / len(samples)
        divisor = case.model.width * step.num_microbatches if case.loss.reduction == "mean" else 1
        right += 2 * total / divisor
        allowed = (_ROUNDED if divisor & (divisor - 1) else _EXACT) * right
        for s in range(case.num_stages):
            for one in evidence.owners(s):
                shown = shown_step(one, expected.step).gradients.get(s, {})
                for name, value in shown.items():
                    evidence.compared()
                    said = _wrong(value, right=right, allowed=allowed)
                    if said is not None:
                        kind, text = said
                        yield Finding(
                            kind=kind,
                            message=f"the gradient of {name} in stage {s} {text}",
                            step=expected.step,
                            rank=one.rank,
                            stage=s,
                        )


def _wrong(value: Array | None, *, right: float, allowed: float) -> tuple[str, str] | None:
    """What is wrong with a gradient, in a word and in a sentence that goes on after its name."""
    if value is None:
        return None  # which other requirements judge
    if value.dtype != "float32":
        return "dtype of a sum", f"is {value.dtype}; the plan asks for float32 sums, and float32 gradients"
    found: Tensor = value.tensor().double().flatten()
    off = (found - right).abs() > allowed
    if not bool(off.any()):
        return None
    first = float(found[off][0])
    return "sum not in float32", f"is {first:.9g}; added up in float32 it is {right:.9g}"
