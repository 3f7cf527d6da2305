"""Computations as executed, compared with a table that the plan gave."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.build.given_table import given_table
from pipeconform.case.case import Train
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.schedules import otherwise
from pipeconform.judge.timeline import executed

__all__ = ["not_as_given"]


def not_as_given(evidence: Evidence) -> Iterator[Finding]:
    """Where a rank computes something else than its line of the table says, or in another order."""
    table = given_table(evidence.case)
    for expected in evidence.runs(Train):
        ranks = executed(evidence, expected.step)
        evidence.compared(len(ranks))
        for one, text, n in otherwise(table, ranks):
            told = (
                f"pipeline rank {one.pipeline_rank} does not compute in the order that the plan gives: {text}"
            )
            yield Finding(
                kind="not the given order", message=told, step=expected.step, rank=one.rank, position=n
            )
