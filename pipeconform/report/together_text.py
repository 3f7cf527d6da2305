"""Which two claimed things were in one case, in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.plural import plural
from pipeconform.report.result import Result

__all__ = ["missing_lines", "together_lines"]


def together_lines(result: Result) -> Iterator[str]:
    """How many pairs were reached; nothing for a run in which no case had two claimed things."""
    pairs = result.totals.together
    if any(one.under for one in pairs):
        reached = sum(bool(one.under) for one in pairs)
        everywhere = sum(not one.not_under for one in pairs)
        yield (
            f"{reached:,} of {plural(len(pairs), 'pair')} of claimed things were reached, "
            f"{everywhere:,} of them under every schedule that allows them"
        )


def missing_lines(result: Result) -> Iterator[str]:
    """The pairs that were not reached, by their first thing; nothing if `together_lines` has nothing."""
    pairs = result.totals.together
    if not any(one.under for one in pairs):
        return
    missing: dict[str, list[str]] = {}
    for one in pairs:
        if not one.under:
            missing.setdefault(one.of[0], []).append(one.of[1])
    for first, others in missing.items():
        yield f"  not reached: {first} with {', '.join(others)}"
