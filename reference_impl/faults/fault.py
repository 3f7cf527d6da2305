"""What is said of a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .sources import SOURCES

__all__ = ["Fault", "Status", "made"]

Status = Literal["failed", "crashed", "hung", "error"]

_HERE = "pipeconform.reference_impl.faults"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong implementation, and how it shows."""

    name: str
    summary: str
    """What is done wrong, in a sentence."""
    requirement: str
    """The requirement that it breaks."""
    schedule: str = "1F1B"
    """A schedule under which it shows."""
    expected_status: Status = "failed"
    reference: str
    """``module:Class``, as ``--impl`` takes it."""
    tells: str = ""
    """A regular expression that the finding's message matches: it names the right stage and microbatch."""
    source: str = ""
    """Where the defect was reported of a real engine, as a link; empty if it is thought up."""


def made(
    where: str,
    requirement: str,
    summary: str,
    *,
    schedule: str = "1F1B",
    status: Status = "failed",
    tells: str = "",
) -> Fault:
    """A fault in ``file:Class``; its name is the class's, in words."""
    words = "".join(
        f"-{letter.lower()}" if letter.isupper() else letter for letter in where.partition(":")[2]
    )
    name = words.lstrip("-")
    return Fault(
        name=name,
        summary=summary,
        requirement=requirement,
        schedule=schedule,
        expected_status=status,
        reference=f"{_HERE}.{where}",
        tells=tells,
        source=SOURCES.get(name, ""),
    )
