"""Causes as text for a terminal: each in full, all of them in a list, and what they block."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from pipeconform.plural import plural
from pipeconform.report.case_text import describe_case
from pipeconform.report.causes import Cause
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.finding_words import known_as, known_at
from pipeconform.report.localisation_text import localisation_lines
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.report.next_steps import next_step
from pipeconform.report.result import Violation
from pipeconform.report.timeline_text import timeline_lines
from pipeconform.report.words import COLOURS, WORDS, control_words, reservation, under
from pipeconform.spec.wrappers import all_requirements

__all__ = [
    "also_violates",
    "blocked_lines",
    "cause_block",
    "cause_list",
    "counted",
    "named",
    "replay_line",
    "shown_as",
    "with_result",
]

_MOST_LINES = 24  # of one message
_LONGEST_HEADLINE = 200
_LEAST_SIGNATURE = 40  # of a line of the list


def named(identifiers: Sequence[str]) -> str:
    """Requirements with their titles: ``TRN-4 Accumulation over steps, TRN-9 Buffers``."""
    titles = {row.id: row.title for row in all_requirements()}
    return ", ".join(f"{one} {titles.get(one, '')}".rstrip() for one in identifiers)


def shown_as(cause: Cause) -> str:
    """How a cause shows: ``gradient value, 1/m times the reference's``."""
    return cause.violation.signature + (f", {cause.factor} times the reference's" if cause.factor else "")


def cause_block(cause: Cause, *, number: int, width: int, where: Path | None) -> Text:
    """One cause in full: the requirement's sentence, where and how it is violated, the smallest case, replay."""
    violation = cause.violation
    row = next((one for one in all_requirements() if one.id == cause.requirement), None)
    level = f" ({row.level})" if row else ""
    head = Text.assemble((f"{number}. {named([cause.requirement])}{level}: ", "bold"), _outcomes(cause), "\n")
    body = textwrap.wrap(row.statement, width - 3) if row else []
    headline, lines = _headline(violation)
    body += ["", headline]
    body += [f"  {line}" for line in _cut(lines)]
    body += [f"  {line}" for line in _verdicts(violation)]
    spread = localisation_lines(violation.localisation, said=violation.message)
    body += ["", *(f"  {line}" for line in spread)] if spread else []
    picture = timeline_lines(violation.timeline, first_wrong=violation.first_wrong, width=width - 5)
    body += ["", *(f"  {line}" for line in picture)] if picture else []
    note = reservation(violation)
    body += ["", f"smallest case, {violation.digest}" + (f" ({note}):" if note else ":")]
    body += [f"  {line}" for line in describe_case(violation.case).splitlines()]
    body.append(f"shown by {plural(cause.occurrences, 'drawn case')}")
    body += [] if violation.control is None else [control_words(violation.control)]
    body += _beside(cause, width=width - 3)
    step = next_step(violation)
    body += textwrap.wrap(f"next: {step}", width - 3) if step else []
    body.append(replay_line(violation, where=where))
    return head.append("\n".join(f"   {line}".rstrip() for line in body))


def _outcomes(cause: Cause) -> Text:
    """``FAIL under ForwardOnly; ERR under GPipe, 1F1B``, as in the row of the requirement."""
    parts = [Text.assemble((WORDS[status], COLOURS[status]), places) for status, places in cause.outcomes]
    return Text("; ").join(parts)


def also_violates(cause: Cause, *, titles: bool = True) -> str:
    """The other requirements that show a cause, with their schedules: ``also violates FWD-24 under LoopedBFS``."""
    alike: dict[str, list[str]] = {}
    for name in cause.others:
        alike.setdefault(cause.under(name), []).append(name)
    parts = (f"{named(names) if titles else ', '.join(names)}{places}" for places, names in alike.items())
    return f"also violates {'; '.join(parts)}" if alike else ""


def _headline(violation: Violation) -> tuple[str, list[str]]:
    """What is wrong in a line, and the lines that explain it."""
    lines = violation.message.strip("\n").splitlines() or [violation.signature]
    if violation.status == "failed":
        return violation.signature + (f" ({violation.where})" if violation.where else ""), lines
    first, *others = lines
    return textwrap.shorten(first, _LONGEST_HEADLINE, placeholder=" …"), others


def _beside(cause: Cause, *, width: int) -> Iterator[str]:
    """The other requirements that show the cause, those that it blocks, and what it is known as."""
    if cause.others:
        yield from textwrap.wrap(also_violates(cause), width)
    if cause.blocked:
        yield from textwrap.wrap(f"blocks {named(cause.blocked_requirements)}", width)
    for entry in cause.known:
        yield known_at(entry)


def counted(causes: Sequence[Cause]) -> str:
    """``18 causes in 23 requirements``."""
    requirements = {name for cause in causes for name in cause.requirements}
    return f"{plural(len(causes), 'cause')} in {plural(len(requirements), 'requirement')}"


def cause_list(causes: Sequence[Cause], *, width: int) -> Iterator[Text]:
    """All causes in order of harm, each with its title and what it is known as."""
    yield Text(f"{counted(causes)}, the most harmful first:", style="bold")
    harm = None
    for number, cause in enumerate(causes, start=1):
        if cause.harm != harm:
            harm = cause.harm
            yield Text(f"  {HARM[harm]}", style="bold")
        chance = f" (by chance: {cause.chance[0]} of {cause.chance[1]})" if cause.chance else ""
        begin, end = f"{number:>4}. {named([cause.requirement])}: ", f"{cause.under()}{chance}"
        room = max(width - len(begin) - len(end), _LEAST_SIGNATURE)
        yield Text(f"{begin}{textwrap.shorten(shown_as(cause), room, placeholder=' …')}{end}")
        if cause.known:
            yield Text(f"      {known_as(cause.known[0])}", style="dim")
        if cause.others:
            yield Text(f"      {also_violates(cause, titles=False)}", style="dim")


def blocked_lines(causes: Sequence[Cause]) -> Iterator[str]:
    """One line for each requirement that blocks others: ``blocked: DPC-6, DPC-9 under GPipe (by TRN-9)``."""
    found: dict[str, dict[str, list[str]]] = {}
    for cause in causes:
        for one in cause.blocked:
            effects = found.setdefault(one.violation.blocked_by, {})
            effects.setdefault(one.requirement, []).append(one.schedule)
    for blocker, effects in found.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, schedules in effects.items():
            alike.setdefault(tuple(dict.fromkeys(schedules)), []).append(name)
        parts = [f"{', '.join(names)}{under(*schedules)}" for schedules, names in alike.items()]
        yield f"blocked: {'; '.join(parts)} (by {blocker})"


def _verdicts(violation: Violation) -> list[str]:
    """How each rank ended, unless the message says so already."""
    lines = violation.verdicts.splitlines()
    if not lines or violation.verdicts in violation.message:
        return []
    return ["every rank returned"] if all(line.endswith("  returned") for line in lines) else lines


def _cut(lines: list[str]) -> list[str]:
    """A message, cut to a readable length."""
    if len(lines) <= _MOST_LINES:
        return lines
    cut = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"… ({plural(cut, 'more line')} in the result file)"]


def replay_line(violation: Violation, *, where: Path | None) -> str:
    """The command that executes the case again, with the result file unless that has its default place."""
    return with_result(violation.replay, where=where)


def with_result(command: str, *, where: Path | None) -> str:
    """A command that reads a result file, which is named unless it has its default place."""
    if where is None or where == DEFAULT_RESULT:
        return command
    return f"{command} --result {shlex.quote(str(where))}"
