"""Numbers with their nouns."""

from __future__ import annotations

__all__ = ["plural"]


def plural(number: int, noun: str) -> str:
    """``1 case``, ``1,200 cases``; for nouns whose plural ends in s, such as ``time`` and ``loss`` (``losses``)."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{number:,} {noun}{ending}"
