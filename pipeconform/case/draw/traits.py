"""What a case is about, read off the case itself (stored and shrunk cases have no other memory of it)."""

from __future__ import annotations

from pipeconform.case.case import Case
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.subject import Subject, group_of
from pipeconform.case.focus import Focus

__all__ = ["traits"]

_GROUPS: dict[str, list[Subject]] = {}
for _one in SUBJECTS.values():
    _GROUPS.setdefault(_one.group, []).append(_one)


def traits(case: Case) -> frozenset[Focus]:
    """The subjects that the case has: of those that are found, the rarest."""
    found = [one for one in _GROUPS[group_of(case)] if one.is_in(case)]
    rarest = max(one.rarity for one in found)
    return frozenset(one.focus for one in found if one.rarity == rarest)
