"""The order of the requirements that every pipeline is judged by."""

from __future__ import annotations

__all__ = ["PRECEDENCE"]

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
