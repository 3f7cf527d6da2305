"""`Finding`: a violation that a judgement finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeconform.bounds.numerics import Mismatch

__all__ = ["Finding", "of_first_wrong_step"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One violation: what was found, and where.

    `kind` is short and stable: findings with the same requirement and kind are one defect.
    """

    kind: str
    message: str
    step: int | None = None
    rank: int | None = None
    stage: int | None = None
    microbatch: int | None = None
    mismatch: Mismatch | None = None
    position: int | None = None
    """If the timeline was observed, the index of the first wrong one among the rank's computations in `step`."""

    def where(self) -> str:
        """``step 0, rank 1, stage 1, microbatch 2``, as far as known."""
        parts = {"step": self.step, "rank": self.rank, "stage": self.stage, "microbatch": self.microbatch}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)


def of_first_wrong_step(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings of the first step that is wrong, and those of no step.

    What is wrong afterwards may follow from it, and no control would say whose business that is.
    """
    found = list(findings)
    first = min((one.step for one in found if one.step is not None), default=None)
    yield from (one for one in found if one.step in (None, first))
