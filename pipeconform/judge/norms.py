"""The gradient norm over all stages (TRN-17)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipeconform.case.case import Case, Train
from pipeconform.judge.evidence import Evidence, Finding, shown_step

__all__ = ["gradient_norm_is_right"]


def gradient_norm_is_right(evidence: Evidence) -> Iterator[Finding]:
    """Every pipeline rank reports the norm of all stages' gradients, with every parameter counted once (TRN-17).

    It is compared with the norm of the gradients that the ranks showed, which other requirements judge. A sum of n
    squares in any order, within or across ranks, is off by at most n unit round-offs, each square and the root by one
    more (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    """
    import torch

    for expected in evidence.runs(Train):
        found = [
            array.tensor().double()
            for s, right in expected.gradients.items()
            for one in list(evidence.owners(s))[:1]
            for name in right
            if not _is_copy(evidence.case, s, name)
            and (array := shown_step(one, expected.step).gradients.get(s, {}).get(name)) is not None
        ]
        right_norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in found))
        count = sum(gradient.numel() for gradient in found)
        for one in evidence.members:
            norm = shown_step(one, expected.step).gradient_norm
            evidence.compared()
            if norm is None:
                text = f"rank {one.rank} reports no norm of the gradients, although it is claimed"
                yield Finding(kind="no norm", message=text, step=expected.step, rank=one.rank)
                continue
            mine, eps = float(norm.tensor()), torch.finfo(norm.tensor().dtype).eps
            if not abs(mine - right_norm) <= (count + 4) * eps * right_norm and not evidence.overflows:
                text = (
                    f"the norm of all gradients is {right_norm:.9g}, rank {one.rank} reports {mine:.9g} "
                    f"({mine / right_norm if right_norm else math.inf:.6g} times it)"
                )
                yield Finding(kind="norm", message=text, step=expected.step, rank=one.rank)


def _is_copy(case: Case, stage: int, name: str) -> bool:
    """Whether the first of the stages that share a parameter is another one: every holder has the same gradient."""
    from pipeconform.case.build.data import tied_names

    return any(where.get(stage) == name and stage != min(where) for where in tied_names(case))
