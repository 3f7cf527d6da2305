"""What a case is about, worked out from the case itself, because stored and shrunk cases do not say."""

from __future__ import annotations

import functools

from pipeconform.case.case import Case
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.subject import Subject, group_of
from pipeconform.case.focus import Focus

__all__ = ["all_traits", "plainer", "traits"]

_GROUPS: dict[str, list[Subject]] = {}
for _one in SUBJECTS.values():
    _GROUPS.setdefault(_one.group, []).append(_one)


@functools.lru_cache(
    maxsize=1 << 14
)  # a case is asked about by many requirements, and while it is made smaller
def traits(case: Case) -> frozenset[Focus]:
    """The subjects of the case: the rarest of those found in it."""
    found = _found(case)
    rarest = max(one.rarity for one in found)
    return frozenset(one.focus for one in found if one.rarity == rarest)


@functools.lru_cache(maxsize=1 << 14)
def all_traits(case: Case) -> frozenset[Focus]:
    """Every subject found in the case, and in what is left of it without its deliberate mistakes."""
    found = [*_found(case), *(_found(case.without_mistakes) if case.is_mistaken else ())]
    return frozenset(one.focus for one in found)


def _found(case: Case) -> list[Subject]:
    return [one for one in _GROUPS[group_of(case)] if one.is_in(case)]


_MOST_SUBJECTS = 4


def plainer(case: Case, *, words: str) -> tuple[Case, str]:
    """The case without any of the subjects that can be taken out, and what was changed, added to `words`."""
    for _ in range(_MOST_SUBJECTS):
        pairs = (pair for focus in sorted(traits(case)) for pair in SUBJECTS[focus].controls_of(case))
        further = next(((more, control) for more, control in pairs if control != case), None)
        if further is None:
            break
        words, case = f"{words}, {further[0]}", further[1]
    return case, words
