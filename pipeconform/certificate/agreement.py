"""Comparing what a package says was judged with the cells and cases that its claims require."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pipeconform.campaign.pairs import pairwise
from pipeconform.campaign.together import meetings
from pipeconform.certificate.contents import JUDGED, RESULT, Contents, case_name
from pipeconform.certificate.listed import Listed, ListedCell
from pipeconform.certificate.package import Doubt
from pipeconform.report.result import Cell, Pairs, Result, Together, Totals

__all__ = ["list_doubts"]

_MOST_NAMED = 3
_REPEATED = 4
"""The most executions of a case that shows nothing wrong: once to judge it, and those of a repetition."""


def list_doubts(contents: Contents, expected: Listed) -> Iterator[Doubt]:
    """Doubts where a package's cells, cases, counts and totals differ from the list drawn again."""
    yield from _cells(contents.result, expected)
    yield from _judged(contents, expected)
    yield from _cases(contents, expected)
    yield from _totals(contents, expected)


def _cells(result: Result, expected: Listed) -> Iterator[Doubt]:
    there = {(cell.requirement, cell.schedule, cell.variant): cell for cell in result.cells}
    order = [(cell.requirement, cell.schedule, cell.variant) for cell in result.cells]
    for key, number in Counter(order).items():
        if number > 1:
            requirement, schedule, variant = key
            yield _about_cells("", f"{requirement} under {schedule} ({variant}) appears {number} times")
    for one in expected.cells:
        cell = there.pop(one.key, None)
        if cell is None:
            yield _about_cells("", f"{_name(one)} is missing; the level judges it, or gives a reason why not")
        else:
            yield from _cell(cell, one)
    for requirement, schedule, variant in there:
        text = f"{requirement} under {schedule} ({variant}) does not belong to the level"
        yield _about_cells("", text)
    if not there and order != [one.key for one in expected.cells] and len(order) == len(expected.cells):
        yield _about_cells("", "not in the order of the standard and of the claims")


def _cell(cell: Cell, one: ListedCell) -> Iterator[Doubt]:
    name = _name(one)
    if one.status is not None:
        unjudged = Cell(
            requirement=one.requirement,
            schedule=one.schedule,
            variant=one.variant,
            status=one.status,
            reason=one.reason,
        )
        if cell.status != one.status:
            text = f"{name}: {cell.status}, but according to the claims it is {one.status}: {one.reason}"
            yield _about_cells("status", text)
        elif cell != unjudged:
            yield _about_cells("", f"{name}: {one.status}, but with counts or with another reason")
        return
    if cell.status in ("not_claimed", "skipped"):
        text = f"{name}: {cell.status}, but according to the claims it is judged on {len(one.digests)} cases"
        yield _about_cells("status", text)
        return
    for field, said, drawn in (
        ("judgements", cell.judgements, len(one.cases)),
        ("distinct_cases", cell.distinct_cases, len(one.digests)),
        ("counts", cell.counts, one.counts),
        ("microbatches", cell.microbatches, one.microbatches),
    ):
        if said != drawn:
            yield _about_cells(field, f"{name}: {_short(said)}, but the level's cases give {_short(drawn)}")
    if cell.without != one.without:
        yield _about_cells(
            "without",
            f"{name}: according to the claims, subjects without cases: {', '.join(one.without) or 'none'}",
        )
    if cell.case is not None:
        text = f"{name}: {cell.status}, but with a case at which it could not be judged"
        yield _about_cells("case", text)
    if cell.executions > _REPEATED * len(one.cases) and not cell.violations:
        text = f"{name}: {cell.executions} executions of {len(one.cases)} cases in which nothing was wrong"
        yield _about_cells("executions", text)


def _judged(contents: Contents, expected: Listed) -> Iterator[Doubt]:
    judged = {(one.requirement, one.schedule, one.variant): one for one in contents.judged}
    if len(judged) != len(contents.judged):
        yield Doubt(file=JUDGED, text="a cell is listed twice")
    for cell in expected.cells:
        if cell.status is not None:
            continue
        found = judged.pop(cell.key, None)
        if found is None:
            yield Doubt(file=JUDGED, text=f"{_name(cell)} is missing")
        elif found.digests != cell.digests:
            yield Doubt(
                file=JUDGED, field="digests", text=f"{_name(cell)}: {_difference(found.digests, cell)}"
            )
    for requirement, schedule, _ in judged:
        yield Doubt(file=JUDGED, text=f"{requirement} under {schedule} is not judged by the level")


def _difference(digests: tuple[str, ...], cell: ListedCell) -> str:
    more = [one for one in digests if one not in cell.digests]
    less = [one for one in cell.digests if one not in digests]
    if more:
        return f"{_listed(more)} {_are(more)} not among the cases drawn for it"
    if less:
        return f"{_listed(less)} {_are(less)} drawn for it, but missing"
    return "the cases are not in the order in which they are drawn"


def _cases(contents: Contents, expected: Listed) -> Iterator[Doubt]:
    """Doubts where a case of the list is missing, or differs from the one that was drawn."""
    for digest, case in expected.cases.items():
        data = contents.cases.get(digest)
        if data is None:
            yield Doubt(file=case_name(digest), text="missing, though the level judges it")
        elif data != msgspec.json.encode(case):
            yield Doubt(file=case_name(digest), text="differs from the case with this digest that is drawn")
    for digest in sorted(contents.cases.keys() - expected.cases.keys()):
        yield Doubt(file=case_name(digest), text="not drawn for any requirement of the level")


def _totals(contents: Contents, expected: Listed) -> Iterator[Doubt]:
    result = contents.result
    totals, cells = result.totals, result.cells
    wrong = any(cell.violations for cell in cells)
    several = sum(case.num_ranks > 1 for case in expected.cases.values())
    for field, said, least in (
        ("judgements", totals.judgements, sum(cell.judgements for cell in cells)),
        ("executions", totals.executions, sum(cell.executions for cell in cells)),
        ("distinct_cases", totals.distinct_cases, len(expected.cases)),
        ("distinct_cases_several_ranks", totals.distinct_cases_several_ranks, several),
    ):
        # executions that make a violation smaller are counted, but are not on the list
        may_exceed = wrong and field.startswith("distinct")
        if said < least or (said > least and not may_exceed):
            text = f"{said}, but the cells and cases give {least}{' or more' if may_exceed else ''}"
            yield Doubt(file=RESULT, field=f"totals.{field}", text=text)
    if (
        totals.distinct_cases > totals.executions
        or totals.distinct_cases_several_ranks > totals.distinct_cases
    ):
        yield Doubt(file=RESULT, field="totals", text="more distinct cases than executions, or than cases")
    reached, possible = expected.points
    merged = len(contents.certificate.run_ids) > 1
    yield from _pairs(() if merged else pairwise(reached, possible), totals, exact=not wrong)
    yield from _together(meetings(reached, possible), totals, exact=not wrong)


def _pairs(given: tuple[Pairs, ...], totals: Totals, *, exact: bool) -> Iterator[Doubt]:
    if exact and totals.pairs != given:
        yield Doubt(file=RESULT, field="totals.pairs", text="differs from what the level's cases reach")
    if exact:
        return
    found = {one.of: one for one in totals.pairs}
    for one in given:
        said = found.get(one.of)
        if said is None or not _may_be(said, one):
            text = f"{' × '.join(one.of)}: differs from what the level's cases reach"
            yield Doubt(file=RESULT, field="totals.pairs", text=text)
    if len(found) != len(totals.pairs) or len(found) != len(given):
        yield Doubt(
            file=RESULT, field="totals.pairs", text=f"{len(totals.pairs)}, but there are {len(given)}"
        )


def _together(given: tuple[Together, ...], totals: Totals, *, exact: bool) -> Iterator[Doubt]:
    said = {one.of: one for one in totals.together}
    possible = tuple({*one.under, *one.not_under} for one in given)
    may_be = (
        [one.of for one in totals.together] == [one.of for one in given]
        and tuple({*one.under, *one.not_under} for one in totals.together) == possible
        and all(set(one.under) <= set(said[one.of].under) for one in given)
    )
    if totals.together != given if exact else not may_be:
        yield Doubt(file=RESULT, field="totals.together", text="differs from what the level's cases reach")


def _may_be(said: Pairs, least: Pairs) -> bool:
    """Whether `said` can come from a run that executed more than the level's cases, which reach `least`."""
    missing = said.missing
    return (
        said.reachable == least.reachable
        and least.reached <= said.reached <= said.reachable
        and len(missing) == min(len(least.missing), said.reachable - said.reached)
        and missing == tuple(sorted(set(missing)))
        and all(part.isprintable() and part for pair in missing for part in pair)
    )


def _about_cells(field: str, text: str) -> Doubt:
    return Doubt(file=RESULT, field=f"cells.{field}" if field else "cells", text=text)


def _name(cell: ListedCell) -> str:
    return f"{cell.requirement} under {cell.schedule}"


def _short(value: Any) -> str:
    """A number, or counts by name."""
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{key}: {number}" for key, number in sorted(value.items())) or "none"


def _listed(digests: list[str]) -> str:
    more = f" and {len(digests) - _MOST_NAMED} more" if len(digests) > _MOST_NAMED else ""
    return ", ".join(digests[:_MOST_NAMED]) + more


def _are(digests: list[str]) -> str:
    return "are" if len(digests) > 1 else "is"
