"""Builds the evidence for judgements from what the ranks of a wrapper case showed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import structs

from pipeconform.bounds.gauge import Gauge
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.judge.finding import Finding
from pipeconform.wrapper import WrapperClaims
from pipeconform.wrappers.judge import WrapperEvidence
from pipeconform.wrappers.observation import Expected, Question, Shown

__all__ = ["came_through", "distinct", "evidence_of"]

Ask = Callable[[Question], Expected]


def evidence_of(
    case: WrapperCase,
    shown: tuple[Shown, ...],
    *,
    claims: WrapperClaims,
    ask: Ask,
    gauge: Gauge | None = None,
) -> WrapperEvidence:
    """The evidence of one execution; `ask` is called only if a judgement needs the expected values or their bounds.

    For a case with two worlds, `shown` is from the second world, or from the first if that one failed.
    """
    counts = gauge or Gauge()

    def world(one: WrapperCase, by: tuple[Shown, ...]) -> WrapperEvidence:
        @functools.cache
        def answer(**how: bool) -> Expected:
            return ask(structs.replace(_question(one, by), **how))

        return WrapperEvidence(
            case=one,
            claims=claims,
            shown=by,
            expected=answer,
            bounded=functools.partial(answer, bounded=True),
            unbroken=functools.partial(answer, bounded=True, unbroken=True),
            gauge=counts,
        )

    if not case.loaded_by:
        return world(case, shown)
    earlier = shown[0].earlier
    if not earlier:
        return world(case.saving, shown)
    return replace(world(case.loading, shown), earlier=world(case.saving, earlier))


def _question(case: WrapperCase, shown: tuple[Shown, ...]) -> Question:
    complete = all(len(one.steps) == case.num_steps(one.rank) for one in shown)
    steps = len(case.steps) if complete else 0
    before = tuple(
        tuple(one.steps[i].before if i < len(one.steps) else {} for one in shown) for i in range(steps)
    )
    return Question(case=case, before=before)


def came_through(shown: tuple[Shown, ...]) -> bool:
    """Whether every rank finished without raising or refusing."""
    return all(one.failed is None and one.unsupported is None for one in shown)


def distinct(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first finding of every kind."""
    kinds: set[str] = set()
    for finding in findings:
        if finding.kind not in kinds:
            kinds.add(finding.kind)
            yield finding
