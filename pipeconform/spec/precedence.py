"""Data about requirements that see the same defect: their order, and what violations are about.

What a violation is about is its `fact`; a fact explains itself and what follows from it, as wrong outputs explain wrong
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "AFTERWARDS",
    "BEFORE_ALL",
    "CROSSING",
    "FIRST",
    "OTHER_RANKS",
    "OWNERS",
    "PLACEMENT",
    "PLAINEST_OF_WRAPPERS",
    "PLAIN_TRAINING",
    "PRECEDENCE",
    "THE_END",
    "fact_of_kind",
    "follows",
]

THE_END = "the end"
"""The fact of a rank that did not end its step: by an error, a hang or a crash."""

PLACEMENT = "placement"
"""The fact that a stage runs on another rank than its own. Whatever else is wrong where it does, follows from it."""

CROSSING = "what crosses"
"""The fact that a stage does not get what it needs from the rank that has it. What it computes instead may be wrong in
any way, and in the smallest cases so few bytes are needed that only the wrong values show."""

FIRST: frozenset[str] = frozenset({PLACEMENT, CROSSING})
"""Facts about what an implementation is: whatever else it does wrong may follow from them, so they are read first."""

AFTERWARDS = "after an error"
"""The fact that what follows an error fails, whichever error it was."""

BEFORE_ALL: tuple[str, ...] = ("SCH-7", "ERR-11")
"""The requirements that explain whatever else is wrong by the fact that is their own business (`OWNERS`), and by no
other fact anything."""

OTHER_RANKS = "COM-2"
"""The requirement that explains what only a case with ranks outside of its pipeline shows."""

PRECEDENCE: tuple[str, ...] = (
    "FWD-1",
    "SCH-1",
    "TRN-2",
    "TRN-3",
    "TRN-1",
    "SCH-2",
    "SCH-9",
    "DPC-1",
)
"""The requirements that ask nothing special of a case, the most basic first. Where two of them see one fact, the first
is accused; every requirement that has no control of its own comes after all of them."""

_FACTS: Mapping[str, str] = MappingProxyType(
    {
        "scale": "gradients",
        "gradient": "gradients",
        "keyword argument's gradient": "input gradients",
        "input gradient": "input gradients",
        "parameter": "parameters",
        "ties differ": "parameters",
        "replicas differ": "gradients",
        "no norm": "norm",
        "norm": "norm",
        "output": "outputs",
        "no output": "outputs",
        "number of outputs": "outputs",
        "boundary": "outputs",
        "merge": "outputs",
        "loss": "losses",
        "no loss": "losses",
        "number of losses": "losses",
        "total loss": "losses",
        "buffer": "buffers",
        "parameter missing": "names",
        "parameter unexpected": "names",
        "buffer missing": "names",
        "buffer unexpected": "names",
        "state lacks a name": "names",
        "state has a strange name": "names",
        "stage on another rank": PLACEMENT,
        "nothing crosses": CROSSING,
        "less crosses than needed": CROSSING,
        "input that did not come": CROSSING,
        "stays on one rank": CROSSING,
        "on several ranks": CROSSING,
        "no F": "computations",
        "several F": "computations",
        "no B or I": "computations",
        "several B or I": "computations",
        "no W": "computations",
        "several W": "computations",
        "a backward where none is due": "computations",
        "a forward of no microbatch": "computations",
        "forward missing": "computations",
        "declared table unreadable": "table",
        "declared table is incomplete": "table",
        "declared table of another size": "table",
        "declared tables differ": "table",
        "declared and executed differ": "table",
        "no declared table": "table",
        "declared table cannot be run": "deadlock",
        "declared table: SCH-5": "deadlock",  # `Rule.DEADLOCK` and `Rule.MATCHING`
        "not the named order": "order",
        "bubble too large": "bubble",
        "too many in flight": "in flight",
        "left over": "kept",
        "kept after the weight part": "kept",
        "graph kept": "kept",
        "tensors left by every": "kept",
        "never synchronised": "reductions",
        "synchronised": "reductions",
        "hook not called": "reductions",
        "activations beyond the bound": "memory",
        "boundary tensors beyond the bound": "memory",
    }
)
"""By how the kind of a finding begins, what it is about. The longest beginning counts; other kinds are facts of their
own."""

_VALUES = frozenset(
    {"outputs", "losses", "gradients", "input gradients", "parameters", "norm", "buffers", "reductions"}
)

_FOLLOWS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "outputs": frozenset({"losses", "gradients", "input gradients", "parameters", "norm", "buffers"}),
        "computations": _VALUES
        | {"order", "in flight", "kept", "memory", "table", "hooks ran more often", "hooks ran less often"},
        "gradients": frozenset({"input gradients", "parameters", "norm", "reductions"}),
        # after a wrong update, every later step is wrong
        "parameters": _VALUES,
        "order": frozenset({"in flight", "memory", "table", "bubble"}),
        "in flight": frozenset({"memory"}),
        "kept": frozenset({"memory"}),
    }
)
"""What follows from a fact, besides itself."""

OWNERS: Mapping[str, str] = MappingProxyType({"names": "LIF-4", PLACEMENT: "SCH-7", AFTERWARDS: "ERR-11"})
"""The requirement whose business a fact is, whichever sees it first."""

_COMPUTATIONS = (": too many", ": too few")


PLAINEST_OF_WRAPPERS = "DPW-1"
"""The requirement that asks nothing special of a case for data-parallel wrappers."""

PLAIN_TRAINING = "with an ordinary module, without options, trained plainly"
"""What the control of every other requirement for wrappers is like: the same case, so changed."""


def fact_of_kind(kind: str, *, ended: bool = False) -> str:
    """What a violation of this kind is about; ``the end`` if a rank `ended` by an error, a hang or a crash."""
    if kind.startswith(AFTERWARDS):
        return AFTERWARDS
    if ended:
        return THE_END
    if kind.endswith(_COMPUTATIONS):
        return "computations"
    begins = max((one for one in _FACTS if kind.startswith(one)), key=len, default=None)
    return kind if begins is None else _FACTS[begins]


def follows(effect: str, cause: str) -> bool:
    """Whether one fact follows from another, or is the same."""
    return cause == effect or cause in FIRST or effect in _FOLLOWS.get(cause, frozenset())
