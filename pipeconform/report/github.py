"""GitHub Actions: workflow commands that annotate files, and the summary of a job in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pipeconform.report.cause_text import blocked_lines, named, replay_line, shown_as
from pipeconform.report.causes import Cause, Known
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.finding_words import finding, known_at
from pipeconform.report.next_steps import next_step
from pipeconform.report.origin import Origin, Origins
from pipeconform.report.overview import DEFAULT
from pipeconform.report.required_change import RequiredChange, required_changes
from pipeconform.report.result import Cell, Result, Violation
from pipeconform.report.summary import totals, verdict
from pipeconform.report.words import EXPECTED, WORDS
from pipeconform.showing import shown_line
from pipeconform.spec.wrappers import all_requirements

__all__ = [
    "MOST_ANNOTATIONS",
    "Severity",
    "also_said",
    "job_summary",
    "workflow_command",
    "workflow_commands",
]

MOST_ANNOTATIONS = 10
"""Of one severity and one step, those that GitHub shows."""

Severity = Literal["error", "warning", "notice"]


def workflow_command(severity: Severity, message: str, *, title: str, origin: Origin | None = None) -> str:
    """A line that annotates a file, or the whole run if there is no `origin`."""
    place = "" if origin is None else f"file={_property(origin.file)},line={origin.line},"
    return f"::{severity} {place}title={_property(title)}::{_data(message)}"


def workflow_commands(
    result: Result,
    causes: Sequence[Cause],
    *,
    origins: Origins,
    expectations: str = "",
    where: Path | None = None,
) -> Iterator[str]:
    """Workflow commands: an error for every cause that is not expected, and for every wrong line of expectations.

    `causes` are those of the result; `expectations` is the path of the expectations file, as a user of the project
    would write it; `where` is the result file.
    """
    accusing = [cause for cause in causes if not cause.expected]
    found = [_annotation(cause, origins=origins, where=where) for cause in accusing]
    found += [_to_change(change, file=expectations) for change in required_changes(result)]
    yield from found[:MOST_ANNOTATIONS]
    if len(found) > MOST_ANNOTATIONS:
        more = f"and {len(found) - MOST_ANNOTATIONS} more; the job's summary and the report list all"
        yield workflow_command("warning", more, title="pipeconform")
    good = not found and any(cell.is_judged for cell in result.cells)
    text = shown_line(verdict(result, causes=causes).plain)
    yield workflow_command("notice" if good else "error", text, title="pipeconform")


def _annotation(cause: Cause, *, origins: Origins, where: Path | None) -> str:
    lines = [
        f"{HARM[cause.harm]}{cause.under()}",
        f"{cause.violation.message.strip().partition(chr(10))[0]} ({cause.violation.where})",
        *also_said(cause, cause.violation),
        replay_line(cause.violation, where=where),
    ]
    return workflow_command(
        "error",
        "\n".join(map(shown_line, lines)),
        title=shown_line(f"{named([cause.requirement])}: {shown_as(cause)}"),
        origin=origins.of(cause.violation),
    )


def also_said(cause: Cause, violation: Violation) -> Iterator[str]:
    """What an annotation says about a cause and one of its violations besides: what it is known as, what to do next."""
    step = next_step(violation)
    yield from map(known_at, cause.known)
    if cause.others:
        yield f"also violates {named(cause.others)}"
    if step:
        yield f"next: {step}"


def _to_change(change: RequiredChange, *, file: str) -> str:
    """An error at the line of the expectations file that must be changed."""
    origin = Origin(file=file, line=change.line) if change.line and file else None
    said = change.text if origin or not change.label else f"{change.label}: {change.text}"
    return workflow_command("error", shown_line(said), title="pipeconform: expectations", origin=origin)


def job_summary(result: Result, causes: Sequence[Cause]) -> str:
    """The summary of a run in Markdown: the verdict, the causes by harm, the table of requirements and schedules."""
    return "\n".join([*_heading(result, causes), *_causes(causes), *_table(result)]) + "\n"


def _heading(result: Result, causes: Sequence[Cause]) -> Iterator[str]:
    run, place = result.run, result.environment
    yield f"### pipeconform: {_text(verdict(result, causes=causes).plain)}"
    yield ""
    yield _text(totals(result)[0]) + "  "
    yield _text(
        f"standard {result.standard_version}, profile {run.profile}, seed {run.seed}, torch {place.torch} on "
        f"{place.device}, {run.seconds:.0f} s"
    )
    problems = () if result.expectations is None else result.expectations.problems
    if problems:
        yield ""
        yield from (f"- {_text(text)}" for text in problems)


def _causes(causes: Sequence[Cause]) -> Iterator[str]:
    if not causes:
        return
    yield ""
    yield "| cause | shows as | under | harm | known as |"
    yield "|---|---|---|---|---|"
    for cause in causes:
        requirements = f"**{_text(named([cause.requirement]))}**"
        if cause.others:
            requirements += f"<br>also {_text(', '.join(cause.others))}"
        harm = "expected" if cause.expected else HARM[cause.harm]
        cells = (
            requirements,
            _text(shown_as(cause)),
            _text(cause.under().removeprefix(" under ")),
            harm,
            "<br>".join(_known(one) for one in cause.known),
        )
        yield f"| {' | '.join(cells)} |"
    lines = list(blocked_lines(causes))
    if lines:
        yield ""
        yield from (f"{_text(line)}  " for line in lines)


def _known(one: Known) -> str:
    words = _text(finding(one))
    return f"[{words}]({one.link})" if re.fullmatch(r"https?://[^\s()<>|]+", one.link) else words


def _table(result: Result) -> Iterator[str]:
    """Requirements by schedules, folded; a requirement that was judged nowhere is left out."""
    columns = list(dict.fromkeys((cell.variant, cell.schedule) for cell in result.cells))
    columns.sort(key=lambda column: column[0] != DEFAULT)
    rows: dict[str, dict[tuple[str, str], Cell]] = {}
    for cell in result.cells:
        rows.setdefault(cell.requirement, {})[cell.variant, cell.schedule] = cell
    judged = {name: row for name, row in rows.items() if any(cell.is_judged for cell in row.values())}
    if not judged:
        return
    titles = {row.id: row.title for row in all_requirements()}
    heads = [schedule if variant == DEFAULT else f"{schedule} ({variant})" for variant, schedule in columns]
    yield ""
    yield "<details><summary>Requirements and schedules</summary>"
    yield ""
    yield f"| requirement | {' | '.join(map(_text, heads))} |"
    yield "|---" * (1 + len(columns)) + "|"
    for name, row in judged.items():
        words = [_word(row[column]) if column in row else "" for column in columns]
        yield f"| {_text(f'{name} {titles.get(name, str())}'.strip())} | {' | '.join(words)} |"
    left_out = len(rows) - len(judged)
    if left_out:
        yield ""
        yield f"{left_out} more {'were' if left_out > 1 else 'was'} judged under no schedule."
    yield ""
    yield "</details>"


def _word(cell: Cell) -> str:
    if cell.is_expected:
        return EXPECTED
    word = WORDS[cell.status]
    return f"**{word}**" if cell.violations and cell.status != "blocked" else word


def _text(text: str) -> str:
    """Text in Markdown, also in a cell of a table: nothing in it is markup."""
    said = shown_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]~])", r"\\\1", said)


def _data(text: str) -> str:
    """Escape the message of a workflow command (GitHub Actions documentation, workflow commands)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
