"""The verdict on a comparison in a sentence, which every output format ends or begins with."""

from __future__ import annotations

from pipeconform.gate.comparison import Comparison
from pipeconform.gate.comparison_entries import cells_of
from pipeconform.plural import plural
from pipeconform.report.change_words import CHANGE_WORDS, as_before, cause_headline, cell_counts

__all__ = ["verdict"]


def verdict(comparison: Comparison) -> str:
    """``blocked: causes: 0 fixed, 0 worse, 1 new; 1 cell regressed, 86 no longer judged, 17 unchanged; …``."""
    words = [cause.word for cause in comparison.causes]
    counts = {kind: cells_of(comparison.of(kind)) for kind in CHANGE_WORDS}
    parts = [
        *([f"causes: {cause_headline(words)}", as_before(words)] if words else []),
        cell_counts(counts, unchanged=comparison.unchanged),
        f"{plural(comparison.still_violated, 'violation')} in both",
    ]
    said = "; ".join(filter(None, parts))
    if not comparison.blocked:
        return f"{'not blocked' if 'worse' in words else 'nothing got worse'}: {said}"
    blocking = [change for change in comparison.changes if change.blocks]
    whole = plural(len(blocking), "change")
    torch = f"torch changed ({comparison.old.torch} → {comparison.new.torch}), and the adapter did not"
    for cause, why in (("rules", "the rules changed"), ("torch", torch)):
        number = sum(change.cause == cause for change in blocking)
        said += f"; {number} of {whole} because {why}" if number else ""
    return f"blocked: {said}"
