"""Where an error began and how it spread, as plain data: made by the judge, kept in results, shown by reports."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Deviation", "Direction", "Lane", "Localisation"]

Direction = Literal[
    "forward value",
    "loss",
    "output gradient",
    "input gradient",
    "weight gradient",
    "buffer",
    "parameter",
]


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Strict and immutable."""


class Deviation(_Data, frozen=True, kw_only=True):
    """One tensor that left its numeric class."""

    direction: Direction
    step: int
    stage: int
    microbatch: int | None = None
    """None of what belongs to all microbatches: weight gradients, buffers, parameters."""
    rank: int | None = None
    """The rank of the world on which it was seen."""
    replica: int | None = None
    """The replica whose value it is; None where there is one pipeline only."""
    side: Literal["input", "output", "result", ""] = ""
    """As that of a `Lane`."""
    tensor: str
    """Which of the stage's: ``input 0``, ``output 1``, or a parameter's name."""
    text: str
    """How it differs, in lines."""
    likeness: str = ""
    """What it is instead, if that is known, such as ``0.25 times the reference's``."""

    def where(self) -> str:
        """``output gradient of stage 1, microbatch 2, in step 0 on rank 1``."""
        microbatch = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        rank = "" if self.rank is None else f" on rank {self.rank}"
        replica = "" if self.replica is None else f" of replica {self.replica}"
        return f"{self.direction} of stage {self.stage}{replica}{microbatch}, in step {self.step}{rank}"


class Lane(_Data, frozen=True, kw_only=True):
    """One place of the data flow, in the step of the first deviation: right or wrong per microbatch."""

    direction: Direction
    stage: int
    side: Literal["input", "output", "result", ""] = ""
    """Of a forward value: what arrives at the stage, what leaves it, or what the caller is given."""
    marks: str
    """A character per microbatch, or one for all: ``=`` in its class, ``x`` not, ``.`` not seen."""


class Localisation(_Data, frozen=True, kw_only=True):
    """The first tensor, in data-flow order, that left its class, and what came of it."""

    first: Deviation | None
    """None when every tensor that was seen kept its class."""
    lanes: tuple[Lane, ...] = ()
    """The step of `first` in the order of the data: forwards, loss, gradients back, then what adds up."""
    compared: int
    """How many tensors were compared, over all steps."""
    wrong: int
    """How many of them had left their class."""
    bounded: bool = True
    """False when no error bound could be computed: what then counts is far beyond rounding."""
