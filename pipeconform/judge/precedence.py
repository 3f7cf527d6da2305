"""Which requirement explains a violation of another one: data, and the functions that read it.

Several requirements may see one defect. The most basic of them is accused, and the others are blocked: they cannot be
judged before it is met. What a violation is about is its `fact`; a fact explains itself and what follows from it, as
wrong outputs explain wrong gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec.precedence import BEFORE_ALL, OWNERS, PRECEDENCE, THE_END, fact_of_kind, follows

__all__ = ["EARLIER", "earlier_than", "explains", "fact_of"]

_MISTAKES = tuple(f"ERR-{n}" for n in range(1, 11))

EARLIER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "SCH-4": ("SCH-8", "SCH-5"),  # a table that cannot be read has no bubble and no deadlock
        "SCH-5": ("SCH-8",),
        "SCH-3": ("SCH-2",),  # another order keeps another number of microbatches
        "LIF-3": ("SPL-2",),
        "LIF-7": ("SCH-2", "SCH-3", "SPL-2"),
        "LIF-1": ("SCH-9",),  # an evaluation that does not end leaves nothing to look at
        "LIF-2": ("SCH-9", "LIF-1"),
        "TRN-19": ("SCH-9",),
        # under schedules that split the backward, graphs that are hard to take apart are the split's business
        "FWD-5": ("SPL-1",),
        "FWD-7": ("SPL-1",),
        "FWD-13": ("SPL-1",),
        "TRN-5": ("SPL-1",),
        "TRN-28": ("SPL-1", "TRN-5"),
        "TRN-8": ("SPL-1",),
        "SPL-2": ("SPL-1",),
        "SPL-5": ("SPL-2",),
        "TRN-15": ("FWD-12",),
        "TRN-16": ("FWD-6",),
        "TRN-17": ("TRN-5", "TRN-6", "TRN-8"),
        "TRC-2": ("TRC-1",),
        "TRC-3": ("TRC-1", "TRC-2"),
        "DPC-2": ("DPC-1",),
        "DPC-4": ("DPC-1", "DPC-2"),
        "DPC-8": ("DPC-1",),
        # how something is refused, after whether it is
        "FWD-24": ("FWD-2",),
        "FWD-25": ("FWD-17",),
        "SPL-6": ("SPL-4",),
        "TRC-6": ("TRC-4",),
        "ERR-17": ("ERR-12",),
        # that nothing works afterwards is one requirement's business, whichever the mistake
        **dict.fromkeys(_MISTAKES, ("ERR-11",)),
        "ERR-4": ("ERR-11", "ERR-3"),  # which microbatch it was, after whether it is noticed
        # how a step ends after a mistake, before what may still be done afterwards
        "ERR-11": ("ERR-1", "ERR-9", "ERR-10"),
        "ERR-13": ("ERR-11", *_MISTAKES),
        "ERR-14": ("ERR-11", "ERR-10"),
        "ERR-15": ("ERR-11", "ERR-1", "ERR-2", "ERR-7"),
    }
)
"""Requirements that come before another one in the same case, even if that one has a control which passes."""

_ENDED = frozenset({Status.ERROR, Status.HUNG, Status.CRASHED})


def fact_of(outcome: Outcome) -> str:
    """What a violation is about, in the same word for all requirements: ``gradients``; ``the end`` of a rank."""
    return fact_of_kind(outcome.finding.kind, ended=outcome.status in _ENDED)


def explains(cause: Outcome, effect: Outcome, *, of: str = "", in_control: bool = False) -> bool:
    """Whether a violation that the requirement `of` found in the same case, or in its control, explains this one.

    A control that does not end explains everything: what it would have shown is unknown.
    """
    fact = fact_of(cause)
    owner = OWNERS.get(fact, "")
    if (of in BEFORE_ALL or (of and owner in BEFORE_ALL)) and owner != of:
        return False
    return (in_control and fact == THE_END) or follows(fact_of(effect), fact)


def earlier_than(requirement: str) -> tuple[str, ...]:
    """The requirements that come before this one where both see one fact in one case, the most basic first."""
    before = tuple(name for name in BEFORE_ALL if name != requirement)
    if requirement in PRECEDENCE:
        return (*before, *PRECEDENCE[: PRECEDENCE.index(requirement)])
    return tuple(dict.fromkeys((*before, *EARLIER.get(requirement, ()), *PRECEDENCE)))
