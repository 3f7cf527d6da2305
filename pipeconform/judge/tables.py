"""Judgements of chapter SCH that a declared table alone decides: its bubble and its freedom from deadlock."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from pipeconform.errors import BadTableError
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.named import accepted
from pipeconform.schedule import (
    Delivery,
    Family,
    Rule,
    Table,
    Violation,
    from_csv,
    lower,
    too_much_bubble,
    verify,
)
from pipeconform.schedule.families import Size

__all__ = ["bubble_is_bounded", "nothing_waits_in_a_circle"]


def bubble_is_bounded(evidence: Evidence) -> Iterator[Finding]:
    """The declared table, run on paper, idles no longer than the named schedule's formula allows (SCH-4)."""
    table = yield from _declared(evidence)
    claim = evidence.capabilities.schedule(evidence.case.schedule)
    assert claim is not None
    assert claim.family is not None
    if table is None:
        return
    size = Size(
        evidence.case.num_ranks, evidence.case.stages_per_rank, evidence.case.runs[0].num_microbatches
    )
    stuck = [v for v in verify(table) if v.rule is Rule.DEADLOCK]
    if stuck:
        yield _finding("declared table cannot be run", stuck[0])
        return
    families = [family for family in accepted(claim.family) if family.refusal(size) is None]
    evidence.compared(len(families))
    yield from _bubbles(table, families, size)


def _bubbles(table: Table, families: list[Family], size: Size) -> Iterator[Finding]:
    """The violations of the family that is violated least: either warm-up is interleaved 1F1B."""
    found: list[Violation] = []
    for family in families:
        found = list(too_much_bubble(table, family=family, size=size))
        if not found:
            return
    yield from (_finding("bubble too large", violation) for violation in found[:1])


def nothing_waits_in_a_circle(evidence: Evidence) -> Iterator[Finding]:
    """The declared table, completed with messages where it has none, runs to its end (SCH-5).

    Under every delivery up to sends in order per pair of ranks: whether all of a rank's transfers share one
    communicator no table says, and with one per pair of ranks such a table is right.
    """
    table = yield from _declared(evidence)
    if table is None:
        return
    evidence.compared()
    stuck = _stuck(table) or ([] if table.has_communication else _stuck(lower(table)))
    yield from (_finding(f"declared table: {violation.rule.value}", violation) for violation in stuck[:1])


def _stuck(table: Table) -> list[Violation]:
    found = verify(table, strictest=Delivery.ORDERED)
    return [violation for violation in found if violation.rule in (Rule.DEADLOCK, Rule.MATCHING)]


def _finding(kind: str, violation: Violation) -> Finding:
    return Finding(kind=kind, message=f"in the declared table, {violation}")


def _declared(evidence: Evidence) -> Generator[Finding, None, Table | None]:
    """The table that the first rank declares; a finding and None where it is none whose order could be judged."""
    one = next(evidence.members)
    if one.table is None:
        yield Finding(kind="no declared table", message="table() returned None", rank=one.rank)
        return None
    try:
        table = from_csv(
            one.table, name="the declared table", num_microbatches=evidence.case.runs[0].num_microbatches
        )
    except BadTableError as error:
        yield Finding(kind="declared table unreadable", message=str(error), rank=one.rank)
        return None
    for violation in verify(table):
        if violation.rule in (Rule.RANGE, Rule.MULTISET):
            yield _finding("declared table is incomplete", violation)
            return None
    return table
