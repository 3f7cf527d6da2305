"""What ranks show of a wrapper, and what the oracle expects: plain data."""

from __future__ import annotations

import msgspec

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.observe.array import Array
from pipeconform.ranks.verdict import Raised

__all__ = ["Expected", "Failure", "Gradients", "PassExpected", "PassShown", "Question", "Shown", "StepShown"]

Named = dict[str, Array]
Gradients = dict[str, Array | None]


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable."""


class PassShown(_Data, frozen=True, kw_only=True):
    """One pass on one rank."""

    gradients: Gradients | None
    """None where they are not known while they only add up."""
    outputs: tuple[Array, ...]
    skeleton: str
    hook_elements: int = 0
    """How many elements the user's hook was given in it."""


class StepShown(_Data, frozen=True, kw_only=True):
    """One step on one rank."""

    before: Named
    passes: tuple[PassShown, ...]
    after: Named
    scale: float | None = None
    """Of the losses after the step, where they are scaled."""


class Failure(_Data, frozen=True, kw_only=True):
    """An exception, and where it came: ``wrap``, ``hook``, or the number of a step."""

    where: str
    type: str
    message: str
    raised: Raised | None = None
    """With its causes and its frames."""


class Shown(_Data, frozen=True, kw_only=True):
    """What one rank shows."""

    rank: int
    initial: Named = {}
    steps: tuple[StepShown, ...] = ()
    final: Named = {}
    beside: Named = {}
    """Parameters that DDP ends with, where it trains the same."""
    saved: Named = {}
    """The whole state dict at the end, where it is saved."""
    checkpoint: bytes = b""
    """The same as a file that torch wrote, of the first rank."""
    earlier: tuple[Shown, ...] = ()
    """Where a world before this one saved what this one loads: what its ranks showed; on the first rank."""
    logged: dict[str, str] = {}
    failed: Failure | None = None
    unsupported: str | None = None


class Question(_Data, frozen=True, kw_only=True):
    """What the oracle is asked: the case, and for each step each rank's state before it."""

    case: WrapperCase
    before: tuple[tuple[Named, ...], ...]


class PassExpected(_Data, frozen=True, kw_only=True):
    """By rank, of those that run the step."""

    gradients: dict[int, Gradients]
    outputs: dict[int, tuple[Array, ...]]
    skeleton: str
    scale: float
    """The largest gradient of any replica."""


class Expected(_Data, frozen=True, kw_only=True):
    """The unwrapped modules' answer."""

    initial: tuple[Named, ...]
    """By rank, as built."""
    parameters: tuple[str, ...]
    names: tuple[str, ...]
    """Of the module's state dict, in which a shared parameter has several."""
    trained: int
    """How many elements the parameters that are trained and not ignored have."""
    steps: tuple[tuple[PassExpected, ...], ...]
    after: tuple[dict[int, Named], ...]
