"""The changes of a comparison as they are told: alike ones once, and coverage that is lost for one reason together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeconform.gate.comparison import Change, Comparison, Kind
from pipeconform.plural import plural
from pipeconform.report.cause_text import named
from pipeconform.report.change_words import CHANGE_WORDS
from pipeconform.report.words import under

__all__ = ["Entry", "cells_of", "entries_of"]

_MOST_NAMED = 6  # requirements of a reason that are named one by one
_BY_REASON: tuple[Kind, ...] = ("lost", "less")
_CAUSES = {"rules": " [the rule changed]", "torch": " [torch changed]"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Changes that are told as one: under several schedules, or lost coverage of several requirements."""

    changes: tuple[Change, ...]

    @property
    def change(self) -> Change:
        """The first of them, which stands for all where they are alike."""
        return self.changes[0]

    @property
    def requirements(self) -> tuple[str, ...]:
        """Those that changed, in order."""
        return tuple(dict.fromkeys(one.requirement for one in self.changes))

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those under which something changed, in order."""
        return tuple(dict.fromkeys(one.schedule for one in self.changes))

    @property
    def transition(self) -> str:
        """``passed → failed``; ``passed, failed → absent`` where cells differed before."""
        sides = [
            ", ".join(dict.fromkeys(status.replace("_", " ") for status in several))
            for several in ((one.before for one in self.changes), (one.after for one in self.changes))
        ]
        return " → ".join(sides)

    @property
    def what(self) -> str:
        """The signature and what else is to be said; of many, what they have in common."""
        if self.change.kind in _BY_REASON:
            details = {one.detail for one in self.changes}
            return self.change.detail if len(details) == 1 else _reason(self.change)
        return "; ".join(filter(None, (self.change.signature, self.change.detail)))

    @property
    def place(self) -> str:
        """``TRN-4 under GPipe, 1F1B``, or how many cells of which requirements."""
        if self.requirements[1:]:
            return f"{plural(cells_of(self.changes), 'cell')} of {_listed(self.requirements)}"
        variants = {one.variant for one in self.changes}
        variant = (
            f" (variant {self.change.variant})" if variants == {self.change.variant} != {"default"} else ""
        )
        return f"{self.change.requirement}{under(*self.schedules)}{variant}"

    @property
    def sentence(self) -> str:
        """The whole entry in a line."""
        if self.requirements[1:]:
            text = f"{self.what}: {self.place}"
        else:
            text = ", ".join(filter(None, (f"{self.place}: {self.transition}", self.what)))
        return text + _CAUSES.get(self.change.cause, "")

    @property
    def titled(self) -> str:
        """The requirement with its title; of several, their ids or chapters."""
        return _listed(self.requirements) if self.requirements[1:] else named(self.requirements)


def entries_of(comparison: Comparison, kind: Kind) -> list[Entry]:
    """The entries of one kind, in the order of the standard."""
    found: dict[tuple[str, ...], list[Change]] = {}
    for change in comparison.of(kind):
        found.setdefault(_key(change), []).append(change)
    return [Entry(changes=tuple(several)) for several in found.values()]


def cells_of(changes: Sequence[Change]) -> int:
    """How many cells changed: one cell may have several changes."""
    return len({(one.requirement, one.schedule, one.variant) for one in changes})


def _key(change: Change) -> tuple[str, ...]:
    """Changes with the same key are told as one."""
    if change.kind in _BY_REASON:
        return change.cause, _reason(change)
    alike = (change.requirement, change.variant, change.signature, change.cause, change.before, change.after)
    detail = "" if change.signature and change.kind not in ("flaky", "sometimes") else change.detail
    return (*alike, detail)


def _reason(change: Change) -> str:
    """Why coverage is lost, without what differs from one requirement to the next."""
    words = CHANGE_WORDS["lost"]
    if change.detail.startswith(f"{words}: "):
        return change.detail.partition(" (")[0]
    return "fewer examples" if change.detail.startswith("fewer examples: ") else change.detail


def _listed(requirements: Sequence[str]) -> str:
    """``3 requirements (FWD-1, FWD-2, TRN-1)``, or of many how many each chapter has."""
    names = list(requirements)
    if len(names) > _MOST_NAMED:
        chapters = [name.partition("-")[0] for name in names]
        names = [f"{one} {chapters.count(one)}" for one in dict.fromkeys(chapters)]
    return f"{plural(len(requirements), 'requirement')} ({', '.join(names)})"
