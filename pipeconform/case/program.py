"""The program of a case: its steps, its loss and its optimizer, as data."""

from __future__ import annotations

from typing import Literal

from pipeconform.case.by_hand import ByHand
from pipeconform.case.mistakes import Mistake
from pipeconform.case.strict import Strict

__all__ = [
    "Adam",
    "Clip",
    "Eval",
    "Freeze",
    "Load",
    "LossSpec",
    "Optimize",
    "Restart",
    "Scaling",
    "Sgd",
    "Step",
    "Train",
    "Zero",
]


class LossSpec(Strict, frozen=True, kw_only=True):
    """The loss of one microbatch.

    With `ignore`, cross-entropy skips a number of targets that differs between microbatches; with `scaled`, the loss
    function gets a number as a keyword argument.

    With `counted`, that number is the reciprocal of how many targets of the whole batch are not ignored, so that a sum
    becomes their mean; where there are several microbatches, some ignore all of theirs, and others in every step.

    With `in_place`, the loss function halves its target in place before it compares.
    """

    kind: Literal["mse", "cross_entropy"] = "mse"
    reduction: Literal["mean", "sum"] = "mean"
    ignore: bool = False
    scaled: bool = False
    fixed: bool = False
    """Whether it is the only loss of the implementation, and so not what the case is about."""
    counted: bool = False
    in_place: bool = False


class Train(Strict, frozen=True, kw_only=True, tag="train", tag_field="step"):
    """Forward and backward over one batch; with `autocast`, under automatic mixed precision.

    With `from_source`, the microbatches come from an iterator that all such steps of the case share.
    """

    batch_size: int
    num_microbatches: int
    autocast: bool = False
    from_source: bool = False
    by_hand: ByHand | None = None
    mistake: Mistake | None = None


class Eval(Strict, frozen=True, kw_only=True, tag="eval", tag_field="step"):
    """Forward only, in evaluation mode; with `guard`, the caller has already switched gradients off.

    With `from_source`, the microbatches come from an iterator that all such evaluations of the case share.
    """

    batch_size: int
    num_microbatches: int
    autocast: bool = False
    guard: Literal["", "no_grad", "inference_mode"] = ""
    from_source: bool = False


class Zero(Strict, frozen=True, kw_only=True, tag="zero_grad", tag_field="step"):
    """Clear all gradients."""

    set_to_none: bool = True


class Optimize(Strict, frozen=True, kw_only=True, tag="optimizer_step", tag_field="step"):
    """One optimizer step."""


class Load(Strict, frozen=True, kw_only=True, tag="load_state", tag_field="step"):
    """Load parameters and buffers that differ from the current ones."""


class Restart(Strict, frozen=True, kw_only=True, tag="restart", tag_field="step"):
    """The pipeline saves its training and is closed; one with other parameters takes its place and restores it.

    There are no gradients afterwards.
    """


class Freeze(Strict, frozen=True, kw_only=True, tag="freeze", tag_field="step"):
    """All parameters of a stage stop to need a gradient, or begin to: the caller sets their ``requires_grad``."""

    stage: int
    frozen: bool = True


class Clip(Strict, frozen=True, kw_only=True):
    """A limit on the norm of all gradients, to which an optimizer step first scales them down."""

    limit: float
    norm: Literal["two", "maximum"] = "two"


class Scaling(Strict, frozen=True, kw_only=True):
    """A factor of the loss in the backward, and what it is multiplied by when a gradient is not finite."""

    initial: float
    backoff: float


class Sgd(Strict, frozen=True, kw_only=True, tag="sgd", tag_field="optimizer"):
    """Stochastic gradient descent."""

    lr: float
    momentum: float = 0.0
    clip: Clip | None = None
    masters: bool = False
    """Whether float32 copies of the parameters are stepped."""
    scaling: Scaling | None = None
    """Needs `masters`, or steps under autocast, whose dtype is then float16."""


class Adam(Strict, frozen=True, kw_only=True, tag="adam", tag_field="optimizer"):
    """Adam with torch's default betas and epsilon."""

    lr: float


Step = Train | Eval | Zero | Optimize | Load | Restart | Freeze
