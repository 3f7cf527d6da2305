"""The verifier's findings: a broken rule, and the proof in words."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Delivery(enum.Enum):
    """When a send lets its rank continue; receives are always posted, and never block by themselves."""

    BUFFERED = "buffered sends"
    """Immediately."""
    SYNCHRONOUS = "synchronous sends"
    """When the other rank has posted the receive."""
    ORDERED = "synchronous sends in order per pair of ranks"
    """As with synchronous sends; and each rank serves its transfers with another rank, in both directions, in order."""
    COMMUNICATOR = "synchronous sends in order per communicator"
    """As with synchronous sends; and each rank serves all its transfers, with whatever ranks, in order."""


class Rule(enum.Enum):
    """A rule that a table can break; the value begins with the requirement of the standard that it belongs to."""

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
    """The proof, with the ranks and actions that contradict each other."""
    rows: tuple[int, ...] = ()
    """The rows involved, the first one first."""
    delivery: Delivery | None = None
    """The delivery under which the rule is broken, where it matters."""

    def __str__(self) -> str:
        under = f" under {self.delivery.value}" if self.delivery else ""
        return f"[{self.rule.value}{under}] {self.message}"
