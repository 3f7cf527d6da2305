"""Deliberate mistakes of the user or of the model, as data.

`pipeconform.case.build.mistakes` makes them on the ranks, and in the oracle, which computes what the model itself
would do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from pipeconform.case.strict import Strict
from pipeconform.claims import MistakeKind

__all__ = ["DTYPES", "SHAPES", "How", "Mistake", "Where", "impossible_mistake", "is_wrong_at_once"]

Where = Literal[
    "input", "output", "gradient", "batch", "source", "mode", "forward", "backward", "loss", "reduction"
]
How = Literal[
    "inner",
    "ndim",
    "flattened",
    "batch",
    "down",
    "up",
    "integer",
    "complex",
    "more",
    "fewer",
    "none",
    "object",
    "mapping",
    "scarce",
    "targets",
    "ragged",
    "ends",
    "no_grad",
    "inference_mode",
    "raise",
]

SHAPES: tuple[How, ...] = ("inner", "ndim", "flattened", "batch")
DTYPES: tuple[How, ...] = ("down", "up", "integer", "complex")
_ALLOWED: dict[Where, tuple[How, ...]] = {
    "input": (*SHAPES, *DTYPES, "more", "fewer", "none", "object"),
    "output": (*SHAPES, *DTYPES, "more", "fewer", "none", "object", "mapping"),
    "gradient": ("inner", "ndim", "down"),
    "batch": ("scarce", "targets", "ragged"),
    "source": ("ends",),
    "mode": ("no_grad", "inference_mode"),
    "forward": ("raise",),
    "backward": ("raise",),
    "loss": ("raise",),
    "reduction": ("raise",),
}


class Mistake(Strict, frozen=True, kw_only=True):
    """What goes wrong in one training step.

    It changes the main tensor of the step's `input`, of a stage's `output`, or the `gradient` of that output: one
    more element in the last dimension (``inner``), one more dimension of size 1 (``ndim``), all dimensions after
    the batch's merged into one (``flattened``; a two-dimensional tensor becomes one-dimensional), one more sample
    (``batch``), a smaller or larger floating dtype (``down``, ``up``), or integers or complex numbers. Or there is
    one tensor ``more`` or ``fewer``, or None, a text or a mapping in its place. Or the `batch` has a single sample
    for all microbatches (``scarce``), one target too few (``targets``), or a second argument with one more sample
    (``ragged``). Or the step's `source` of microbatches ends before one of them (``ends``). Or the caller switches
    gradients off around the step, by a gradient `mode`. Or a stage's `forward` or `backward`, the `loss` function,
    or on every replica the communication hook that does the `reduction` of a stage's gradients raises an exception.
    """

    where: Where
    how: How
    stage: int = 0
    """The stage whose output, gradient, forward or backward is wrong."""
    microbatch: int | None = None
    """The number of the stage's forward within the step, or of the first microbatch that a source lacks; None for every
    microbatch."""
    early: bool = False
    """Register the hook that makes the mistake before the pipeline is built, instead of right before the step."""

    @property
    def kind(self) -> MistakeKind:
        """The kind of mistake about which an implementation may promise an error."""
        match self.where:
            case "gradient":
                return MistakeKind.GRADIENT
            case "batch":
                return MistakeKind.BATCH
            case "source":
                return MistakeKind.SOURCE
            case "mode":
                return MistakeKind.NO_GRADIENTS
            case "forward" | "backward" | "loss" | "reduction":
                return MistakeKind.EXCEPTION
        if self.how in ("more", "fewer"):
            return MistakeKind.ARITY
        if self.how in ("none", "object", "mapping"):
            return MistakeKind.NO_TENSOR
        if self.where == "input":
            return MistakeKind.INPUT_SHAPE if self.how in SHAPES else MistakeKind.INPUT_DTYPE
        return MistakeKind.OUTPUT_SHAPE if self.how in SHAPES else MistakeKind.OUTPUT_DTYPE

    def in_words(self) -> str:
        """The mistake in words, such as ``stage 1 hands on a float32 tensor for microbatch 2``."""
        which = "" if self.microbatch is None else f" for microbatch {self.microbatch}"
        match self.where:
            case "batch":
                return _BATCHES[self.how]
            case "source":
                return f"the source of microbatches ends before number {self.microbatch}"
            case "mode":
                return f"the step is run under torch.{self.how}()"
            case "loss":
                return f"the loss function raises{which}"
            case "reduction":
                return f"the communication hook of stage {self.stage} raises"
            case "forward" | "backward":
                return f"the {self.where} of stage {self.stage} raises{which}"
        what = _WORDS[self.how]
        subject = {
            "input": "the first stage is given",
            "output": f"stage {self.stage} hands on",
            "gradient": f"a hook turns the gradient of stage {self.stage}'s output into",
        }[self.where]
        return f"{subject} {what}{which}"


def is_wrong_at_once(mistake: Mistake, *, containers: Collection[str]) -> bool:
    """Whether the mistake is one in a first step, too, and not only unlike the steps before it.

    How many tensors a stage hands on, and in which of the `containers` that may cross, its first step decides.
    """
    if mistake.where != "output":
        return True
    return mistake.how not in ("more", "fewer") and not (mistake.how == "mapping" and "mapping" in containers)


_BATCHES: dict[How, str] = {
    "scarce": "the batch has only one sample",
    "targets": "there is one target too few",
    "ragged": "the second argument has one sample more than the first",
}
_WORDS: dict[How, str] = {
    "inner": "a tensor whose last dimension is longer by one",
    "ndim": "a tensor with one more dimension",
    "flattened": "a flattened tensor",
    "batch": "a tensor with another number of samples",
    "down": "a tensor of a smaller dtype",
    "up": "a tensor of a larger dtype",
    "integer": "a tensor of integers",
    "complex": "a tensor of complex numbers",
    "more": "one tensor too many",
    "fewer": "one tensor too few",
    "none": "None instead of a tensor",
    "object": "a text instead of a tensor",
    "mapping": "a mapping instead of a tensor",
}


def impossible_mistake(one: Mistake, *, name: str, num_stages: int, num_microbatches: int) -> Iterator[str]:
    """Yield the reasons why a mistake is impossible."""
    if one.how not in _ALLOWED[one.where]:
        yield f"{name}.how {one.how!r} does not apply to {one.where!r}; expected {', '.join(_ALLOWED[one.where])}"
    if not 0 <= one.stage < num_stages:
        yield f"{name}.stage {one.stage} is outside 0…{num_stages - 1}"
    if one.microbatch is not None and not 0 <= one.microbatch < num_microbatches:
        yield f"{name}.microbatch {one.microbatch} is outside 0…{num_microbatches - 1}"
    if one.microbatch is not None and one.where in ("input", "batch", "mode", "reduction"):
        yield f"{name} changes the whole batch, not microbatch {one.microbatch}: leave microbatch out"
    if one.microbatch is None and one.where == "source":
        yield f"{name} ends a source: it needs the number of the first microbatch that is missing"
