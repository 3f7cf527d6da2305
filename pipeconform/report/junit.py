"""A result as JUnit XML, for GitLab, GitHub and others that show tests: one test case for each cell.

What these render is a case's name, class, file, line, time and message. Requirements that are not met are failures;
what was not judged is skipped, and says why; causes are properties of the suite. Every line of a file of expectations
that must be changed is a failing case, too: the file says that a run failed wherever its exit code does.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeconform.report.cause_text import also_violates, blocked_lines, named, shown_as
from pipeconform.report.causes import Cause
from pipeconform.report.causes.harm import WORDS
from pipeconform.report.finding_words import known_as, known_at, known_ids
from pipeconform.report.next_steps import next_step
from pipeconform.report.origin import Origin, Origins
from pipeconform.report.overview import DEFAULT
from pipeconform.report.required_change import RequiredChange, required_changes
from pipeconform.report.result import Cell, Result
from pipeconform.report.text import describe_cell, headline
from pipeconform.report.words import under
from pipeconform.showing import shown, shown_line

__all__ = ["JUNIT_NAME", "cause_properties", "junit"]

JUNIT_NAME = "junit.xml"
_SUITE = "pipeconform"
_REQUIREMENT = re.compile(r"\b[A-Z]{3}-\d+\b")
_NOT_JUDGED = ("blocked", "nothing_compared", "not_claimed", "skipped")


def junit(
    result: Result,
    causes: Sequence[Cause],
    *,
    origins: Origins | None = None,
    expectations: str = "",
    where: Path | None = None,
) -> bytes:
    """The file for a result and its causes; `origins` finds the lines that violations come from.

    `expectations` is the path of the expectations file, as a user of the project would write it; `where` is the result
    file.
    """
    name = result.implementation.name
    cases = [_case(cell, causes, name=name, origins=origins, where=where) for cell in result.cells]
    cases += _to_change(result, file=expectations)
    kinds = [child.tag for case in cases for child in case]
    counts = {
        "tests": str(len(cases)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
        "time": _seconds(sum(cell.seconds for cell in result.cells)),
    }
    suite = ET.Element("testsuite", {"name": _SUITE, **counts, "timestamp": result.created[:19]})
    suite.append(_properties([*_facts(result), *cause_properties(causes)]))
    suite.extend(cases)
    suites = ET.Element("testsuites", {"name": _SUITE, **counts})
    suites.append(suite)
    ET.indent(suites)
    text: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def cause_properties(causes: Sequence[Cause]) -> Iterator[tuple[str, str]]:
    """The name and the value of a property for each cause, the most harmful first, and for what they block."""
    for cause in causes:
        text = f"{WORDS[cause.harm]}: {named([cause.requirement])}: {shown_as(cause)}{cause.under()}"
        text += f"; {also_violates(cause)}" if cause.others else ""
        text += "".join(f"; {known_as(entry)}" for entry in cause.known)
        yield "expected cause" if cause.expected else "cause", shown_line(text)
    for line in blocked_lines(causes):
        yield "blocked", shown_line(line.removeprefix("blocked: "))


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    """What was judged, by which rules, and where."""
    one, run, place = result.implementation, result.run, result.environment
    yield "implementation", shown_line(f"{one.name} {one.version}")
    yield "standard", shown_line(result.standard_version)
    yield "pipeconform", shown_line(result.product_version)
    yield "profile", shown_line(f"{run.profile}, seed {run.seed}")
    yield "torch", shown_line(f"{place.torch}, {place.device}")
    if not run.complete:
        yield "complete", "no: the run was stopped early, cells are missing"


def _properties(properties: Sequence[tuple[str, str]]) -> ET.Element:
    found = ET.Element("properties")
    for name, value in properties:
        ET.SubElement(found, "property", name=name, value=value)
    return found


def _case(
    cell: Cell, causes: Sequence[Cause], *, name: str, origins: Origins | None, where: Path | None
) -> ET.Element:
    variant = "" if cell.variant == DEFAULT else f" ({cell.variant})"
    case = ET.Element(
        "testcase",
        {
            "name": shown_line(f"{named([cell.requirement])}{under(cell.schedule)}{variant}"),
            "classname": shown_line(f"{name}.{cell.requirement.partition('-')[0]}"),
            **_place(_origin(cell, origins)),
            "time": _seconds(cell.seconds),
        },
    )
    if cell.status == "passed":
        return case
    if cell.is_expected:
        ET.SubElement(case, "skipped", type="expected", message=shown_line(_expected(cell)))
    elif cell.status in _NOT_JUDGED:
        word = cell.status.replace("_", " ")
        said = cell.reason if cell.reason.startswith(word) else f"{word}: {cell.reason}"
        ET.SubElement(case, "skipped", type=cell.status, message=shown_line(said))
    elif not cell.violations:
        error = ET.SubElement(case, "error", type=cell.status, message=shown_line(headline(cell)))
        error.text = shown(cell.reason)
    else:
        wrong = ET.SubElement(
            case, "failure", type=cell.status, message=shown_line(headline(cell) + _as_known(cell, causes))
        )
        wrong.text = shown("\n".join([describe_cell(cell, where=where), *_beside(cell, causes)]))
    return case


def _expected(cell: Cell) -> str:
    """What is expected in a cell, by which entries, and what else it shows that another requirement blocks."""
    covered = [one for one in cell.violations if one.expected]
    entries = ", ".join(dict.fromkeys(one.expected for one in covered))
    kinds = ", ".join(dict.fromkeys(f"{one.status}: {one.signature}" for one in covered))
    others = dict.fromkeys(
        f"; {one.status}: {one.signature} blocked by {one.blocked_by}"
        for one in cell.violations
        if not one.expected
    )
    return f"expected: {kinds} ({entries}){''.join(others)}"


def _to_change(result: Result, *, file: str) -> Iterator[ET.Element]:
    """A failing case for each line of the expectations file that must be changed."""
    by_label: dict[str, list[RequiredChange]] = {}
    for change in required_changes(result):
        by_label.setdefault(change.label, []).append(change)
    for label, changes in by_label.items():
        first = changes[0]
        about = _REQUIREMENT.search(first.text)
        case = ET.Element(
            "testcase",
            {
                "name": shown_line(" ".join(filter(None, (label, about[0] if about else ""))) or first.text),
                "classname": shown_line(f"{result.implementation.name}.expectations"),
                **_place(Origin(file=file, line=first.line) if file and first.line else None),
                "time": _seconds(0),
            },
        )
        more = f" (and {len(changes) - 1} more)" if changes[1:] else ""
        failure = ET.SubElement(case, "failure", type="expectations", message=shown_line(first.text + more))
        failure.text = shown("\n".join(change.text for change in changes))
        yield case


def _origin(cell: Cell, origins: Origins | None) -> Origin | None:
    if origins is None:
        return None
    wrong = [one for one in cell.violations if not (one.expected or one.blocked_by)]
    return origins.of(wrong[0]) if wrong else origins.adapter


def _place(origin: Origin | None) -> dict[str, str]:
    return {} if origin is None else {"file": shown_line(origin.file), "line": str(origin.line)}


def _of(cell: Cell, causes: Sequence[Cause]) -> list[tuple[int, Cause]]:
    """The causes that a cell shows, with their numbers in the reports."""
    return [
        (number, cause)
        for number, cause in enumerate(causes, start=1)
        if any(one.cell is cell for one in cause.own)
    ]


def _as_known(cell: Cell, causes: Sequence[Cause]) -> str:
    words = known_ids([entry for _, cause in _of(cell, causes) for entry in cause.known])
    return f", {words}" if words else ""


def _beside(cell: Cell, causes: Sequence[Cause]) -> Iterator[str]:
    """What is behind a cell's violations, what they are known as, and what to do next."""
    for number, cause in _of(cell, causes):
        yield f"  cause {number} of {len(causes)}: {named([cause.requirement])}: {shown_as(cause)}{cause.under()}"
        yield from (f"  {known_at(entry)}" for entry in cause.known)
    for step in dict.fromkeys(map(next_step, cell.violations)):
        if step:
            yield f"  next: {step}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
