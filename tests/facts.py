"""What a sentence says, however it is worded: tests of what was found do not depend on words that may get better."""

from __future__ import annotations

import re

__all__ = ["numbers", "tells"]


def tells(text: str, *facts: str) -> bool:
    """Whether the text has all these facts, each behind the one before, and none as a part of a longer word or number.

    "rank 1" is not told by "rank 10", and "2 times" not by "-2 times". Who does something to whom is told by the order
    of the two: give the fact that stands between them, too, where one of them is named twice.
    """
    at = 0
    for fact in facts:
        found = re.compile(rf"(?<![\w.-]){re.escape(fact)}(?!\w|\.\d)").search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


def numbers(text: str) -> list[int]:
    """All whole numbers of a text, in its order: nothing else is counted or numbered there."""
    return [int(one) for one in re.findall(r"(?<![\w.])\d+(?!\w|\.\d)", text)]
