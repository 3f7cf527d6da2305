"""The scale of the loss on every rank (TRN-24)."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.case import Optimize, Train
from pipeconform.judge.evidence import Evidence, Finding, shown_step

__all__ = ["scales_are_right"]


def scales_are_right(evidence: Evidence) -> Iterator[Finding]:
    """Every pipeline rank reports the reference's scale, exactly: it is only ever multiplied by powers of two."""
    # one that steps in its training step has changed the scale there
    steps = (Optimize,) if evidence.capabilities.fused_optimizer else (Train, Optimize)
    for expected in evidence.runs(steps):
        for one in evidence.members:
            mine, right = shown_step(one, expected.step).loss_scale, expected.loss_scale
            evidence.compared()
            if mine is None:
                text = f"rank {one.rank} reports no scale of the loss, although it is claimed"
                yield Finding(kind="no loss scale", message=text, step=expected.step, rank=one.rank)
            elif mine != right:
                text = f"rank {one.rank} scales the next losses by {mine:.9g}; the reference by {right:.9g}"
                yield Finding(kind="loss scale", message=text, step=expected.step, rank=one.rank)
