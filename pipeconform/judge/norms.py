"""The gradients of all stages, and their norm (TRN-17)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pipeconform.case.case import Case, Train
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.observe.observation import StepExpected

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["gradient_norm_is_right", "shown_gradients", "two_norm"]


def gradient_norm_is_right(evidence: Evidence) -> Iterator[Finding]:
    """Every pipeline rank reports the norm of all stages' gradients, with every parameter counted once (TRN-17).

    It is compared with the norm of the gradients that the ranks showed, which other requirements judge. A sum of n
    squares in any order, within or across ranks, is off by at most n unit round-offs, each square and the root by one
    more (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The round-off is that of the coarsest
    dtype among the gradients and the norm: what is reported in float64 may have been computed in the gradients' dtype.
    """
    import torch

    for expected in evidence.runs(Train):
        found = shown_gradients(evidence, expected)
        right_norm = two_norm(found)
        count = sum(gradient.numel() for gradient in found)
        coarsest = max((torch.finfo(gradient.dtype).eps for gradient in found), default=0.0)
        for one in evidence.members:
            norm = shown_step(one, expected.step).gradient_norm
            evidence.compared()
            if norm is None:
                text = f"rank {one.rank} reports no norm of the gradients, although it is claimed"
                yield Finding(kind="no norm", message=text, step=expected.step, rank=one.rank)
                continue
            mine = float(norm.tensor())
            eps = max(coarsest, torch.finfo(norm.tensor().dtype).eps)
            if not abs(mine - right_norm) <= (count + 4) * eps * right_norm and not evidence.overflows:
                text = (
                    f"the norm of all gradients is {right_norm:.9g}, rank {one.rank} reports {mine:.9g} "
                    f"({mine / right_norm if right_norm else math.inf:.6g} times it)"
                )
                yield Finding(kind="norm", message=text, step=expected.step, rank=one.rank)


def shown_gradients(evidence: Evidence, expected: StepExpected) -> list[Tensor]:
    """The gradients of all stages that the ranks showed after a step, every parameter's once."""
    copies = _copies(evidence.case)
    return [
        array.tensor()
        for s, right in expected.gradients.items()
        for one in list(evidence.owners(s))[:1]
        for name in right
        if (s, name) not in copies
        and (array := shown_step(one, expected.step).gradients.get(s, {}).get(name)) is not None
    ]


def two_norm(gradients: Iterable[Tensor]) -> float:
    """The 2-norm of all of them together, computed in float64."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in gradients))


def _copies(case: Case) -> frozenset[tuple[int, str]]:
    """Parameters that an earlier stage has, too, by stage and name: every holder has the same gradient."""
    from pipeconform.case.build.data import tied_names

    return frozenset((s, name) for where in tied_names(case) for s, name in where.items() if s != min(where))
