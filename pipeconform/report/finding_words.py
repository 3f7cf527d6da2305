"""Findings in words, the same in every view: ``known as finding 3: …``.

A finding always stands with the word, because its id is often a number, which a reader could take for a cause's.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.report.causes import Known

__all__ = ["finding", "known_as", "known_at", "known_ids"]


def finding(entry: Known) -> str:
    """A finding by id and title: ``finding 3: A step divides …``."""
    return f"finding {entry.id}: {entry.title}"


def known_as(entry: Known) -> str:
    """What a cause is known as: ``known as finding 3: A step divides …``."""
    return f"known as {finding(entry)}"


def known_at(entry: Known) -> str:
    """`known_as`, and where the finding is written up."""
    places = ", ".join(filter(None, (entry.link, entry.thread)))
    return f"{known_as(entry)} ({places})"


def known_ids(entries: Sequence[Known]) -> str:
    """Several by their ids only: ``known as findings 3, 4``; empty for none."""
    found = tuple(dict.fromkeys(entry.id for entry in entries))
    word = "finding" if len(found) == 1 else "findings"
    return f"known as {word} {', '.join(found)}" if found else ""
