"""Whether an error message swaps what was expected and what was found.

Some words say which side is which: "expected A, got B", "is B, but A was traced", "changed from A to B". Only a text
that gives *both* sides the wrong role is wrong; a text whose words are not known here is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["dtype_pattern", "exchanged", "shape_pattern", "shown_pattern"]

_GAP = r"[\s:='\"]"  # a comma ends what a word is said of
_BETWEEN = r"(?:a|an|of|to be|be|is|was|were|with|now|the|its|shape|sizes?|dtype|tensor|input|output)"
_FILLER = rf"(?:{_GAP}+{_BETWEEN})*{_GAP}+"
_WANTED = r"expects?|expected|expecting|traced|declared|planned|should|must|wants|wanted"
_EXPECTED_BEFORE = rf"\b(?:{_WANTED}|changed\b[^.;]*\bfrom){_FILLER}"
_ACTUAL_BEFORE = (
    rf"\b(?:is|are|got|actual|actually|found|received|given|has|have|changed\b[^.;]*\bto){_FILLER}"
)
_EXPECTED_AFTER = r"\s+(?:(?:was|were|is|are|had been)\s+)?(?:expected|traced|declared|planned|wanted)\b"
_ACTUAL_AFTER = r"\s+(?:(?:was|were|is|are)\s+)?(?:given|found|received)\b"


def shape_pattern(shape: Sequence[int], *, free: int | None = None) -> str:
    """A shape in any brackets, with or without a dtype or class before it; dimension `free` may be anything."""
    sizes = r"\s*,\s*".join(r"[\w*]+" if dim == free else str(size) for dim, size in enumerate(shape))
    return rf"(?:[\w.]+)?[\[(]{{1,2}}\s*{sizes}\s*,?\s*[\])]{{1,2}}"


def shown_pattern(shape: Sequence[int]) -> str:
    """A shape, or a whole printed tensor of that shape."""
    return rf"(?:{shape_pattern(shape)}|\b(?:tensor|Parameter)\([\s\S]*\))"


def dtype_pattern(name: str) -> str:
    """A dtype, with or without ``torch.``; a shape may follow."""
    return rf"(?:torch\.)?\b{re.escape(name)}\b(?:[\[(][^\[\]()]*[\])])?"


def exchanged(text: str, *, expected: str, actual: str) -> bool:
    """Whether a text says that `actual` was expected and that `expected` was found.

    `expected` and `actual` are patterns; both must stand in the wrong role, and neither also in the right one.
    """
    return (
        _stands(text, actual, _EXPECTED_BEFORE, _EXPECTED_AFTER)
        and _stands(text, expected, _ACTUAL_BEFORE, _ACTUAL_AFTER)
        and not _stands(text, expected, _EXPECTED_BEFORE, _EXPECTED_AFTER)
        and not _stands(text, actual, _ACTUAL_BEFORE, _ACTUAL_AFTER)
    )


def _stands(text: str, what: str, before: str, after: str) -> bool:
    """Whether `what` directly follows or precedes one of the words of a role."""
    return re.search(f"(?:{before}(?:{what}))|(?:(?:{what}){after})", text, re.IGNORECASE) is not None
