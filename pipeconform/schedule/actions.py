"""Actions: what a rank does, in the notation of the field.

A simple action is written stage, kind, microbatch: ``2F0`` runs the forward of stage 2 on microbatch 0,
``1SEND_B3`` sends the gradient of stage 1's *input* for microbatch 3, ``3UNSHARD`` gathers the
parameters of stage 3 (no microbatch). Two kinds are made of parts: ``(3F2;4B0)OVERLAP_F_B`` runs a
forward and a backward as one and ``(1SEND_F0;1RECV_B0)BATCH`` issues several transfers at once (our own
notation; torch's table formats have none for it). All others are spelled as torch spells them; waits for
sends and reductions are in its tables since 2.15.
"""

from __future__ import annotations

import enum
import re
from types import MappingProxyType
from typing import NamedTuple

from pipeconform.errors import BadTableError


class Kind(enum.IntEnum):
    """What an action does; the name is its spelling in tables, the number its code in storage."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: input and weight gradients at once; takes as long as I and W together."""
    I = 2  # noqa: E741 - the field's name for it
    """Input gradient."""
    W = 3
    """Weight gradient."""
    SEND_F = 4
    """Send this stage's output to the next stage."""
    RECV_F = 5
    """Receive this stage's input from the previous stage."""
    SEND_B = 6
    """Send the gradient of this stage's input to the previous stage."""
    RECV_B = 7
    """Receive the gradient of this stage's output from the next stage."""
    WAIT_SEND_F = 8
    """Wait until this stage's output has been sent; a send that is waited for does not hold its rank up itself."""
    WAIT_SEND_B = 9
    """Wait until the gradient of this stage's input has been sent."""
    UNSHARD = 10
    """Gather the parameters of a sharded stage."""
    RESHARD = 11
    """Free the gathered parameters."""
    REDUCE_GRAD = 12
    """Reduce the accumulated gradients over the replicas."""
    WAIT_REDUCE_GRAD = 13
    """Wait until they have been reduced."""
    OVERLAP_F_B = 14
    """A forward and a backward run as one."""
    BATCH = 15
    """Transfers issued as one."""


COMPUTE = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})
SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
RECEIVES = frozenset({Kind.RECV_F, Kind.RECV_B})
COMMUNICATION = SENDS | RECEIVES
WAITED_FOR = MappingProxyType({Kind.WAIT_SEND_F: Kind.SEND_F, Kind.WAIT_SEND_B: Kind.SEND_B})
"""The send that each kind of wait is for."""
SHARDING = frozenset({Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD, Kind.WAIT_REDUCE_GRAD})
COMPOSITE = frozenset({Kind.OVERLAP_F_B, Kind.BATCH})

MAX_INDEX = 2**31 - 2
_MOST_DIGITS = 40  # leading zeros are accepted, but not arbitrarily many
"""The largest stage or microbatch a table can hold (32-bit storage, one value kept for "none")."""

_SIMPLE = re.compile(
    r"(?P<stage>[0-9]+)"
    r"(?P<kind>(?:WAIT_)?SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|(?:WAIT_)?REDUCE_GRAD|F|B|I|W)"
    r"(?P<mb>[0-9]*)"
)
_COMPOSITE = re.compile(r"\((?P<parts>[^()]*)\)(?P<kind>[A-Z_]+)")


class Action(NamedTuple):
    """One thing a rank does; ``str()`` writes it and `Action.parse` reads it back."""

    stage: int
    """The stage, from 0; −1 for an action made of parts."""
    kind: Kind
    """What is done."""
    microbatch: int | None = None
    """The microbatch, from 0; None where the kind has none."""
    parts: tuple[Action, ...] = ()
    """The simple actions of an overlapped pair or a batch, else empty."""

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind.name}"
        return f"{self.stage}{self.kind.name}{'' if self.microbatch is None else self.microbatch}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def leaves(self) -> tuple[Action, ...]:
        """The simple actions it is made of: its parts, or itself."""
        return self.parts or (self,)

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read one action.

        Raises:
            BadTableError: The text is not an action; the message says why.
        """
        text = text.strip()
        if match := _SIMPLE.fullmatch(text):
            return _simple(match)
        if match := _COMPOSITE.fullmatch(text):
            kind = Kind.__members__.get(match["kind"])
            if kind not in COMPOSITE:
                names = " or ".join(sorted(k.name for k in COMPOSITE))
                raise BadTableError(
                    f"{text!r} is not an action: parts can form {names}, not {match['kind']!r}"
                )
            return composite(kind, *(cls.parse(part) for part in match["parts"].split(";")))
        raise BadTableError(
            f"{text!r} is not an action; expected <stage><kind><microbatch> such as 2F0, 1SEND_B3 or 3UNSHARD, "
            "or parts such as (3F2;4B0)OVERLAP_F_B"
        )


def overlap(forward: Action, backward: Action) -> Action:
    """A forward and a backward run as one, as DualPipeV does (``(3F2;4B0)OVERLAP_F_B``).

    Raises:
        BadTableError: The parts are not one F followed by one B or I.
    """
    return composite(Kind.OVERLAP_F_B, forward, backward)


def batch(*transfers: Action) -> Action:
    """Several transfers issued as one: none of them waits for another.

    Raises:
        BadTableError: There are fewer than two parts, or one is not a send or a receive.
    """
    return composite(Kind.BATCH, *transfers)


def composite(kind: Kind, *parts: Action) -> Action:
    """An action made of parts.

    Raises:
        BadTableError: The parts do not fit the kind.
    """
    action = Action(-1, kind, None, parts)
    kinds = [part.kind for part in parts]
    if kind is Kind.OVERLAP_F_B:
        if len(parts) != 2 or kinds[0] is not Kind.F or kinds[1] not in {Kind.B, Kind.I}:
            raise BadTableError(f"{action} is not an overlapped pair: it takes one F, then one B or I")
    elif kind is Kind.BATCH:
        if len(parts) < 2 or any(part not in COMMUNICATION for part in kinds):
            raise BadTableError(f"{action} is not a batch: it takes two or more sends and receives")
    else:
        raise BadTableError(f"{kind.name} is not made of parts")
    return action


def _simple(match: re.Match[str]) -> Action:
    if max(len(match["stage"]), len(match["mb"] or "")) > _MOST_DIGITS:
        raise BadTableError(f"'{match[0][:20]}…' is not an action: numbers end at {MAX_INDEX}")
    stage, kind, microbatch = int(match["stage"]), Kind[match["kind"]], match["mb"]
    if kind in SHARDING:
        if microbatch:
            raise BadTableError(f"{match[0]!r} is not an action: {kind.name} takes no microbatch")
        number = None
    elif not microbatch:
        raise BadTableError(
            f"{match[0]!r} is not an action: {kind.name} needs a microbatch, such as {match[0]}0"
        )
    else:
        number = int(microbatch)
    if max(stage, number or 0) > MAX_INDEX:
        raise BadTableError(f"{match[0]!r} is not an action: numbers end at {MAX_INDEX}")
    return Action(stage, kind, number)
