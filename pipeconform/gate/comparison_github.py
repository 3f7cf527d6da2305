"""A comparison as GitHub's workflow commands, which annotate files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeconform.gate.comparison import Comparison, Kind
from pipeconform.gate.comparison_entries import Entry, entries_of
from pipeconform.gate.comparison_words import verdict
from pipeconform.report.cause_text import named, shown_as
from pipeconform.report.causes import Cause
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.change_words import CHANGE_WORDS
from pipeconform.report.github import MOST_ANNOTATIONS, Severity, also_said, workflow_command
from pipeconform.report.origin import Origins
from pipeconform.report.result import Violation
from pipeconform.showing import shown_line

__all__ = ["annotated"]

_ERRORS: tuple[Kind, ...] = ("regressed", "new", "lost", "less")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A violation of the new result, and what is behind it."""

    violation: Violation
    cause: Cause


def annotated(
    comparison: Comparison, *, causes: Sequence[Cause] = (), origins: Origins | None = None
) -> Iterator[str]:
    """The workflow commands: what got worse, each at its line, then what is better, and the verdict last.

    `causes` are those of the new result, and `origins` finds their lines: then changes that have one cause are one
    annotation, which says what `pipeconform run` says of it.
    """
    seen = {
        one.violation.id: _Seen(violation=one.violation, cause=cause)
        for cause in causes
        for one in (*cause.own, *cause.blocked)
    }
    told: dict[Severity, list[str]] = {"error": [], "warning": [], "notice": []}
    for kind in CHANGE_WORDS:
        severity: Severity = "error" if kind in _ERRORS else "warning" if kind == "flaky" else "notice"
        groups = _by_cause(entries_of(comparison, kind), seen)
        told[severity] += [_annotation(severity, group, seen=seen, origins=origins) for group in groups]
    for lines in told.values():
        yield from lines[:MOST_ANNOTATIONS]
    left = sum(len(lines[MOST_ANNOTATIONS:]) for lines in told.values())
    if left:
        yield workflow_command(
            "warning", f"and {left} more; the job's summary lists all", title="pipeconform"
        )
    yield workflow_command(
        "error" if comparison.blocked else "notice", shown_line(verdict(comparison)), title="pipeconform"
    )


def _by_cause(entries: Sequence[Entry], seen: Mapping[str, _Seen]) -> list[list[Entry]]:
    """Entries that show the same cause together; where none is known, each alone."""
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        found = seen.get(entry.change.violation)
        groups.setdefault(id(entry) if found is None else id(found.cause), []).append(entry)
    return list(groups.values())


def _annotation(
    severity: Severity, group: Sequence[Entry], *, seen: Mapping[str, _Seen], origins: Origins | None
) -> str:
    entry, *others = group
    change, found = entry.change, seen.get(entry.change.violation)
    words = CHANGE_WORDS[change.kind]
    if not change.signature:
        title, lines = words, [entry.sentence]
    else:
        is_its_own = found is not None and found.cause.requirement == change.requirement
        title = f"{named([change.requirement])}: {change.signature}"
        lines = [f"{words}: {entry.place}: {entry.transition}", change.detail]
        if found is not None:
            title = f"{named([change.requirement])}: {shown_as(found.cause)}" if is_its_own else title
            lines[0] += f", {HARM[found.cause.harm]}"
        if others:
            same = dict.fromkeys(other.change.requirement for other in others)
            lines.append(f"{words} with it: {named(list(same))}")
        if found is not None and is_its_own:
            lines += also_said(found.cause, found.violation)
        elif found is not None:
            lines.append(f"cause: {named([found.cause.requirement])}: {shown_as(found.cause)}")
        lines.append(change.replay)
    return workflow_command(
        severity,
        "\n".join(map(shown_line, filter(None, lines))),
        title=shown_line(title),
        origin=None if found is None or origins is None else origins.of(found.violation),
    )
