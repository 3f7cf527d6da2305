"""Which known names somebody may have meant by an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

__all__ = ["hint", "nearest"]

_MOST = 3
_CUTOFF = 0.55
_LEAST_BEGINNING = 4


def nearest(name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The known names that are most like `name`, best first; none if nothing is like it.

    Letter case and punctuation do not count. `aliases` are other spellings, each with the known name that it means.
    """
    offers: dict[str, str] = {}
    for spelling, meant in [*((one, one) for one in known), *(aliases or {}).items()]:
        offers.setdefault(_folded(spelling), meant)
    folded = _folded(name)
    if folded in offers:
        return (offers[folded],)
    near = difflib.get_close_matches(folded, offers, n=_MOST, cutoff=_CUTOFF)
    longer = [one for one in offers if len(folded) > 1 and one.startswith(folded)]
    shorter = [one for one in offers if len(one) >= _LEAST_BEGINNING and folded.startswith(one)]
    shorter.sort(key=len, reverse=True)
    return tuple(dict.fromkeys(offers[one] for one in (*shorter, *near, *longer)))[:_MOST]


def hint(near: Iterable[str]) -> str:
    """The nearest names as the end of a message, such as ``; nearest: GPipe``; empty if there are none."""
    names = ", ".join(near)
    return f"; nearest: {names}" if names else ""


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold()) or name.casefold()
