"""What a run tells while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What is being done right now."""

    requirement: str
    schedule: str
    doing: str
    judged: int
    violations: int
