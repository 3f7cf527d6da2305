"""Which two claimed things were in one case, under which schedules: a `Point` with a schedule and both names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeconform.campaign.pairs import Point
from pipeconform.case.case import Case
from pipeconform.case.draw.claimed import members_within
from pipeconform.case.draw.pairs import Pair
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.subjects.together import PAIRS, pairs_in
from pipeconform.case.focus import Limits
from pipeconform.claims import ScheduleClaim
from pipeconform.report.result import Together

__all__ = ["meetings", "meetings_of", "merged", "possible_meetings"]

_LENGTH = 3


def meetings_of(case: Case) -> frozenset[Point]:
    """The pairs of claimed things that a case has."""
    return frozenset(
        (case.schedule, pair.first.focus.value, pair.second.focus.value) for pair in pairs_in(case)
    )


def possible_meetings(limits: Limits, schedules: Iterable[str]) -> frozenset[Point]:
    """Every pair that cases under `schedules` can have."""
    return frozenset(
        (name, pair.first.focus.value, pair.second.focus.value)
        for name in schedules
        if (claim := limits.capabilities.schedule(name)) is not None
        for pair in _pairs_within(limits, claim)
    )


def _pairs_within(limits: Limits, claim: ScheduleClaim) -> Iterator[Pair]:
    foci = dict.fromkeys(pair.focus for pair in PAIRS)
    members = {id(one) for focus in foci for one in members_within(limits, claim, SUBJECTS[focus])}
    return (pair for pair in PAIRS if id(pair.subject) in members)


def meetings(reached: Iterable[Point], possible: Iterable[Point]) -> tuple[Together, ...]:
    """For every pair that is possible under some schedule, the schedules under which cases had it, and the others."""
    reached = {point for point in reached if len(point) == _LENGTH}
    found: dict[tuple[str, str], list[str]] = {}
    for schedule, first, second in sorted({point for point in possible if len(point) == _LENGTH}):
        found.setdefault((first, second), []).append(schedule)
    return tuple(
        Together(
            of=of,
            under=tuple(name for name in names if (name, *of) in reached),
            not_under=tuple(name for name in names if (name, *of) not in reached),
        )
        for of, names in sorted(found.items())
    )


def merged(several: Iterable[Together]) -> tuple[Together, ...]:
    """The same of several runs together."""
    every = [(one.of, name, name in one.under) for one in several for name in (*one.under, *one.not_under)]
    return meetings(
        ((name, *of) for of, name, was_there in every if was_there), ((name, *of) for of, name, _ in every)
    )
