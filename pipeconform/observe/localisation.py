"""Where an error began and how it spread, as plain data: the judge makes it, results store it, reports show it."""

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
    """A strict and immutable struct."""


class Deviation(_Data, frozen=True, kw_only=True):
    """A tensor that left its numeric class."""

    direction: Direction
    step: int
    stage: int
    microbatch: int | None = None
    """None for values of all microbatches together: weight gradients, buffers, parameters."""
    rank: int | None = None
    """The rank of the world on which it was seen."""
    replica: int | None = None
    """The replica whose value it is; None if there is one pipeline only."""
    side: Literal["input", "output", "result", ""] = ""
    """A `Lane`'s direction."""
    tensor: str
    """Which of the stage's tensors: ``input 0``, ``output 1``, or a parameter's name."""
    text: str
    """How it differs, in lines."""
    likeness: str = ""
    """A known relation to the right value, such as ``0.25 times the reference's``."""

    def where(self) -> str:
        """``output gradient of stage 1, microbatch 2, in step 0 on rank 1``."""
        microbatch = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        rank = "" if self.rank is None else f" on rank {self.rank}"
        replica = "" if self.replica is None else f" of replica {self.replica}"
        return f"{self.direction} of stage {self.stage}{replica}{microbatch}, in step {self.step}{rank}"


class Lane(_Data, frozen=True, kw_only=True):
    """A place of the data flow, in the step of the first deviation: right or wrong per microbatch."""

    direction: Direction
    stage: int
    side: Literal["input", "output", "result", ""] = ""
    """For a forward value: what arrives at the stage, what leaves it, or what the caller gets."""
    marks: str
    """A character per microbatch, or one for all: ``=`` in its class, ``x`` not, ``.`` not seen."""


class Localisation(_Data, frozen=True, kw_only=True):
    """The first tensor, in data-flow order, that left its class, and what followed from it."""

    first: Deviation | None
    """None if every tensor that was seen kept its class."""
    lanes: tuple[Lane, ...] = ()
    """The step of `first` in the order of the data: forwards, loss, gradients back, then what adds up."""
    compared: int
    """How many tensors were compared, over all steps."""
    wrong: int
    """How many of them had left their class."""
    bounded: bool = True
    """False if no error bound could be computed: then only differences far beyond rounding count."""
