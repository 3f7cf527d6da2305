"""What ranks show of a wrapper, and what the oracle expects, as plain data."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.observe.array import Array
from pipeconform.ranks.verdict import Raised, one_of

__all__ = ["Expected", "Failure", "Gradients", "PassExpected", "PassShown", "Question", "Shown", "StepShown"]

Named = dict[str, Array]
Gradients = dict[str, Array | None]


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """The immutable base of this module's types."""


class PassShown(_Data, frozen=True, kw_only=True):
    """What one rank shows of one pass."""

    gradients: Gradients | None
    """The gradients after the pass; None where the wrapper does not know them while they accumulate."""
    outputs: tuple[Array, ...]
    skeleton: str
    hook_elements: int = 0
    """The number of elements that the user's hook got in the pass."""


class StepShown(_Data, frozen=True, kw_only=True):
    """What one rank shows of one step."""

    before: Named
    passes: tuple[PassShown, ...]
    after: Named
    scale: float | None = None
    """The scale of the losses after the step, if they are scaled."""


class Failure(_Data, frozen=True, kw_only=True):
    """An exception, and where it was raised: ``wrap``, ``hook``, ``step 0`` and so on."""

    where: str
    type: str
    message: str
    raised: Raised | None = None
    """The exception with its causes and frames."""

    def is_one_of(self, names: Iterable[str]) -> bool:
        """Whether it is an exception of one of these types; see `pipeconform.ranks.verdict.one_of`."""
        return one_of(self.type, *(self.raised.bases if self.raised else ()), names=names)


class Shown(_Data, frozen=True, kw_only=True):
    """What one rank shows of a case."""

    rank: int
    initial: Named = {}
    steps: tuple[StepShown, ...] = ()
    final: Named = {}
    beside: Named = {}
    """The final parameters of DDP, if it trains beside the wrapper."""
    saved: Named = {}
    """The whole state dict at the end, if it is saved."""
    checkpoint: bytes = b""
    """The saved state as a file that torch wrote; on the first rank only."""
    earlier: tuple[Shown, ...] = ()
    """What the ranks of the first world showed, if this is the second; on the first rank only."""
    logged: dict[str, str] = {}
    failed: Failure | None = None
    unsupported: str | None = None


class Question(_Data, frozen=True, kw_only=True):
    """A question to the oracle: the case, and each rank's state before each step."""

    case: WrapperCase
    before: tuple[tuple[Named, ...], ...]
    bounded: bool = False
    """Whether to bound, by running error analysis, how far another right evaluation may be from each value."""
    unbroken: bool = False
    """Train all steps from the initial values, whatever the ranks showed in between."""


class PassExpected(_Data, frozen=True, kw_only=True):
    """The expected values of one pass, by rank, for the ranks that run the step."""

    gradients: dict[int, Gradients]
    outputs: dict[int, tuple[Array, ...]]
    skeleton: str
    gradient_bounds: dict[int, Named] = {}
    """The bounds of gradients, if they were asked for; those of outputs beside them."""
    output_bounds: dict[int, tuple[Array, ...]] = {}


class Expected(_Data, frozen=True, kw_only=True):
    """The oracle's answer, from unwrapped modules."""

    initial: tuple[Named, ...]
    """The initial state by rank."""
    parameters: tuple[str, ...]
    names: tuple[str, ...]
    """The names in the module's state dict, in which a shared parameter has several."""
    trained: int
    """The number of elements of all parameters that are trained and not ignored."""
    steps: tuple[tuple[PassExpected, ...], ...]
    after: tuple[dict[int, Named], ...]
    after_bounds: tuple[dict[int, Named], ...] = ()
    """The bounds of the states after the steps, if they were asked for."""
