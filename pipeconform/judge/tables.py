"""Judgement of a declared table by itself: its bubble and its freedom from deadlock."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from pipeconform.errors import BadTableError
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.schedule import (
    Delivery,
    Family,
    Rule,
    Table,
    Violation,
    from_csv,
    too_much_bubble,
    verify,
)
from pipeconform.schedule.families import Size

__all__ = [
    "about_table",
    "bubbles_too_large",
    "judgeable_table",
    "stuck_in",
]


def bubbles_too_large(table: Table, families: list[Family], size: Size) -> Iterator[Finding]:
    """The violations of the family that fits best: interleaved 1F1B has two accepted warm-ups."""
    found: list[Violation] = []
    for family in families:
        found = list(too_much_bubble(table, family=family, size=size))
        if not found:
            return
    yield from (about_table("bubble too large", violation) for violation in found[:1])


def stuck_in(table: Table) -> list[Violation]:
    """Why a table does not run to its end; empty if it does."""
    found = verify(table, strictest=Delivery.ORDERED)
    return [violation for violation in found if violation.rule in (Rule.DEADLOCK, Rule.MATCHING)]


def about_table(kind: str, violation: Violation) -> Finding:
    """A finding about the declared table."""
    return Finding(kind=kind, message=f"in the declared table, {violation}")


def judgeable_table(evidence: Evidence) -> Generator[Finding, None, Table | None]:
    """The table that the first rank declares; a finding and None if its order cannot be judged."""
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
            yield about_table("declared table is incomplete", violation)
            return None
    return table
