"""Checking that every field of a package's result is in its range and consistent with the others of its cell."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence

from pipeconform.campaign.status import identifier_of, status_of
from pipeconform.case.any_case import schedule_of, world_sizes
from pipeconform.case.case import Case
from pipeconform.certificate.claimed import target_in
from pipeconform.certificate.contents import RESULT, Contents
from pipeconform.certificate.drawing import PROFILE, SEED
from pipeconform.certificate.package import Doubt
from pipeconform.certificate.parts import parse_shard, part_of
from pipeconform.errors import UsageError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.report.result import RESULT_FORMAT, Cell, Result, Violation
from pipeconform.spec import CertificationLevel, mandatory, rule_digest
from pipeconform.spec.wrappers import all_requirements

__all__ = ["field_doubts", "is_time"]

_BROKEN = ("failed", "hung", "crashed", "error")
_NOT_JUDGED = ("not_claimed", "skipped")


def field_doubts(level: CertificationLevel, contents: Contents) -> Iterator[Doubt]:
    """Doubts about values in a result that no run can produce."""
    result = contents.result
    if result.format != RESULT_FORMAT:
        yield _doubt("format", f"{result.format}; a package of this version has {RESULT_FORMAT}")
    if not is_time(result.created):
        yield _doubt("created", f"{result.created!r} is not a time such as 2026-01-02T03:04:05+00:00")
    yield from _asked(level, contents)
    yield from _rules(result)
    for cell in result.cells:
        yield from _cell(cell, result)


def is_time(text: str) -> bool:
    """Whether `text` is a time in UTC, as `datetime.datetime.isoformat` writes it to the second."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return found.tzinfo == datetime.UTC and found.isoformat(timespec="seconds") == text


def _asked(level: CertificationLevel, contents: Contents) -> Iterator[Doubt]:
    """Doubts about the run's options, which a certification fixes."""
    run, certificate = contents.result.run, contents.certificate
    ranks = range(
        max(level.ranks), level.max_ranks + 1
    )  # a machine may have devices for fewer than are allowed
    selected, schedules = _selection(level, contents)
    for field, said, fixed in (
        ("profile", run.profile, PROFILE),
        ("seed", run.seed, SEED),
        ("search", run.search, 0),
        ("selection", run.selection, ",".join(selected)),
        ("unrestricted", run.unrestricted, not schedules),
        ("ids", run.ids, certificate.run_ids),
    ):
        if said != fixed:
            yield _doubt(f"run.{field}", f"{said!r}, but a certification for this level has {fixed!r}")
    if run.max_ranks not in ranks:
        text = f"{run.max_ranks}, but level {level.title} demands {max(level.ranks)}"
        if run.max_ranks > level.max_ranks:
            text = f"{run.max_ranks}, but level {level.title} uses {level.max_ranks}"
        yield _doubt("run.max_ranks", text)
    elif run.max_ranks < level.max_ranks and contents.result.environment.device == "cpu":
        yield _doubt("run.max_ranks", f"{run.max_ranks}, but CPUs always have room for {level.max_ranks}")
    if not _is_duration(run.seconds):
        yield _doubt("run.seconds", f"{run.seconds} is not a duration")
    if contents.result.expectations is not None:
        yield _doubt("expectations", "expected failures were allowed; a certification expects none")
    if contents.result.coverage is not None:
        yield _doubt("coverage", "was measured; a certification does not measure it")


def _selection(level: CertificationLevel, contents: Contents) -> tuple[Sequence[str], Sequence[str]]:
    """The requirements and the schedules that the run must have been restricted to; empty for all."""
    wanted, shard = [row.id for row in mandatory(level)], contents.certificate.shard
    target = target_in(contents.result.implementation, max_ranks=level.max_ranks, draws=None)
    try:
        number, total = parse_shard(shard) if shard and target is not None else (0, 0)
        return part_of(target, wanted, number=number, total=total) if target and total else (wanted, ())
    except UsageError:
        return wanted, ()  # a wrong shard is reported elsewhere


def _rules(result: Result) -> Iterator[Doubt]:
    current = {row.id: rule_digest(row) for row in all_requirements()}
    judged = {cell.requirement for cell in result.cells}
    wrong = [name for name, digest in result.rules.items() if current.get(name) != digest]
    wrong += sorted(judged ^ result.rules.keys())
    if wrong:
        names = ", ".join(dict.fromkeys(wrong))
        yield _doubt("rules", f"differ from the rules of this version: {names}")


def _cell(cell: Cell, result: Result) -> Iterator[Doubt]:
    where = f"{cell.requirement} under {cell.schedule}"
    judged = cell.status not in _NOT_JUDGED
    due = status_of(cell.violations, compared=cell.compared)
    if judged and cell.status != due and not (cell.status == "error" and cell.reason):
        says = due.replace("_", " ")
        yield _doubt("cells.status", f"{where}: {cell.status}, but according to its violations it is {says}")
    if sum(cell.counts.values()) != cell.judgements:
        yield _doubt("cells.counts", f"{where}: the counts do not add up to {cell.judgements} judgements")
    if cell.distinct_cases > cell.judgements:
        yield _doubt("cells.distinct_cases", f"{where}: more distinct cases than judgements")
    numbers = (cell.judgements, cell.executions, cell.distinct_cases, cell.compared)
    if min(*numbers, *cell.counts.values(), *cell.microbatches.values()) < 0:
        yield _doubt("cells", f"{where}: a negative number")
    if cell.reason and judged and cell.status not in ("error", "nothing_compared"):
        yield _doubt("cells.reason", f"{where}: has a reason why it was not judged, but was judged")
    if not _is_duration(cell.seconds):
        yield _doubt("cells.seconds", f"{where}: {cell.seconds} is not a duration")
    ratio = cell.worst_ratio
    if ratio is not None and not 0 <= ratio <= 1:
        yield _doubt(
            "cells.worst_ratio",
            f"{where}: {ratio}; the ratio of an accepted difference to its bound is between 0 and 1",
        )
    if cell.stale:
        yield _doubt("cells.stale", f"{where}: a certification has no stored cases")
    if len({one.id for one in cell.violations}) < len(cell.violations):
        yield _doubt("cells.violations.id", f"{where}: a violation appears twice")
    for violation in cell.violations:
        yield from _violation(violation, cell, result)


def _violation(one: Violation, cell: Cell, result: Result) -> Iterator[Doubt]:
    def doubt(field: str, text: str) -> Doubt:
        return _doubt(f"cells.violations.{field}", f"{one.id}: {text}")

    where = f"{cell.requirement}:{cell.schedule}:{cell.variant}"
    known = identifier_of(where, f"{one.status}/{one.signature}")
    if one.expected:
        text = f"{cell.requirement} under {cell.schedule} counts a failure as expected"
        yield _doubt("cells.violations.expected", text)
    elif one.id != known:
        yield doubt("id", f"according to its cell, status and signature it is {known}")
    if one.status not in _BROKEN:
        yield doubt("status", f"{one.status} is not the status of a violation")
    if one.case.digest != one.digest:
        yield doubt("digest", f"{one.digest} is not the digest of its case")
    if not _is_about(one, cell):
        yield doubt("case", f"{cell.requirement} under {cell.schedule} does not judge this case")
    if one.replay != f"pipeconform replay {one.id} --impl {result.implementation.reference}":
        yield doubt("replay", "not the command that replays it")
    if not 1 <= one.occurrences <= cell.judgements:
        yield doubt("occurrences", f"{one.occurrences} of {cell.judgements} judgements")
    shown = (one.reruns, one.shown_again, one.shown_otherwise, one.shrink_executions)
    if min(shown) < 0 or one.shown_again + one.shown_otherwise > one.reruns:
        yield doubt("reruns", "shown more often than the case was executed again")
    elif one.confirmed != (one.shown_again + one.shown_otherwise == one.reruns):
        yield doubt("confirmed", f"{one.confirmed}, which its {one.reruns} reruns contradict")
    if one.minimal and not one.confirmed:
        yield doubt("minimal", "marked as minimal, but never shown again")
    if one.first_wrong is not None and not _is_in(one.first_wrong, one.timeline):
        yield doubt("first_wrong", "outside of the timeline")
    if (result.implementation.capabilities or {}).get("world") != "single_process":
        yield from _ranks(one)


def _is_about(one: Violation, cell: Cell) -> bool:
    if schedule_of(one.case) != cell.schedule:
        return False
    judgement = JUDGEMENTS.get(cell.requirement)
    return judgement is None or (isinstance(one.case, Case) and judgement.applies(one.case))


def _ranks(one: Violation) -> Iterator[Doubt]:
    """Doubts about ranks that did not report; a world that is a single process has one report."""
    lines = re.findall(r"^rank (\d+)\b", one.verdicts, re.MULTILINE)
    sizes = world_sizes(one.case)
    if one.verdicts and len(set(lines)) not in sizes:
        text = f"{one.id}: {len(set(lines))} of {sizes[-1]} ranks reported"
        yield _doubt("cells.violations.verdicts", text)


def _is_in(place: tuple[int, int], timeline: tuple[tuple[str, ...], ...] | None) -> bool:
    rank, index = place
    return timeline is not None and 0 <= rank < len(timeline) and 0 <= index <= len(timeline[rank])


def _is_duration(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _doubt(field: str, text: str) -> Doubt:
    return Doubt(file=RESULT, field=field, text=text)
