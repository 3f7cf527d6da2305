"""What the verifier finds: a broken rule and the proof, in words."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Delivery(enum.Enum):
    """When a send lets its rank go on; receives are always posted, never waited for by themselves."""

    BUFFERED = "buffered sends"
    """At once."""
    SYNCHRONOUS = "synchronous sends"
    """When the other rank has posted the receive."""
    ORDERED = "synchronous sends in order per pair of ranks"
    """Likewise, and a pair of ranks serves its transfers, both directions, strictly in each one's order."""
    COMMUNICATOR = "synchronous sends in order per communicator"
    """Likewise, and a rank serves all its transfers, whoever is at their other ends, strictly in its order."""


class Rule(enum.Enum):
    """What can be broken; the value is the requirement of the standard that it belongs to."""

    RANGE = "SCH-1 range"
    MULTISET = "SCH-1 multiset"
    ORDER = "SCH-1 order"
    NAMED = "SCH-2 named order"
    IN_FLIGHT = "SCH-3 in flight"
    BUBBLE = "SCH-4 bubble"
    DEADLOCK = "SCH-5 deadlock"
    MATCHING = "SCH-5 matching"
    PLACEMENT = "SCH-7 placement"
    SHARDING = "SCH-1 sharding"

    @property
    def requirement(self) -> str:
        """The requirement's id, such as ``SCH-1``."""
        return self.value.split()[0]


@dataclass(frozen=True)
class Violation:
    """One broken rule."""

    rule: Rule
    message: str
    """The proof: names ranks, actions and what contradicts what."""
    rows: tuple[int, ...] = ()
    """The rows involved, the first one first."""
    delivery: Delivery | None = None
    """Under which delivery, where it matters."""

    def __str__(self) -> str:
        under = f" under {self.delivery.value}" if self.delivery else ""
        return f"[{self.rule.value}{under}] {self.message}"
