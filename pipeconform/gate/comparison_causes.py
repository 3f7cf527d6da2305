"""The causes of two results in words: which are new, which are gone, and which both have."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pipeconform.report.cause_change import CauseKind, MatchedCause, matched_causes
from pipeconform.report.cause_text import shown_as
from pipeconform.report.causes import Known
from pipeconform.report.causes.harm import WORDS
from pipeconform.report.change_words import CauseWord
from pipeconform.report.finding_words import finding
from pipeconform.report.result import Result

__all__ = ["CauseChange", "CauseKind", "cause_changes"]


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, compared between two results."""

    kind: CauseKind
    requirement: str
    """The requirement that says best what is wrong."""
    title: str
    harm: str
    signature: str
    schedules: tuple[str, ...]
    known: tuple[str, ...] = ()
    """The findings that it is known as: ``finding 3: A step divides …``."""
    also: tuple[str, ...] = ()
    """Requirements that it violates in the new result, and neither violates nor blocks in the old one."""
    no_longer: tuple[str, ...] = ()
    """Requirements that it violates in the old result, and neither violates nor blocks in the new one."""
    also_under: tuple[str, ...] = ()
    """Schedules under which it shows in the new result only."""
    is_worse: bool = False
    """Whether both results have it, and the new one violates more cells by it, or with worse harm."""

    @property
    def word(self) -> CauseWord:
        """How it changed, in the words of all reports."""
        return "worse" if self.is_worse else self.kind


def cause_changes(
    old: Result, new: Result, *, known: Sequence[Known] | None = None
) -> tuple[CauseChange, ...]:
    """Compare the causes of two results in the order of `matched_causes`."""
    return tuple(map(_change, matched_causes(old, new, known=known)))


def _change(found: MatchedCause) -> CauseChange:
    cause, before = found.cause, found.before
    names = {name for one in before for name in one.requirements}
    effects = {name for one in before for name in one.blocked_requirements}
    schedules = {name for one in before for name in one.schedules}
    return CauseChange(
        kind=found.kind,
        requirement=cause.requirement,
        title=cause.title,
        harm=WORDS[cause.harm],
        signature=shown_as(cause),
        schedules=cause.schedules,
        known=tuple(map(finding, cause.known)),
        also=tuple(name for name in cause.requirements if name not in names | effects) if before else (),
        no_longer=tuple(sorted(names - {*cause.requirements, *cause.blocked_requirements})),
        also_under=tuple(name for name in cause.schedules if name not in schedules) if before else (),
        is_worse=found.is_worse,
    )
