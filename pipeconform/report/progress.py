"""The progress of a run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a run is doing at this moment."""

    requirement: str
    schedule: str
    doing: str
    judged: int
    violations: int
