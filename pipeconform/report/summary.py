"""The summary at the end of a run, made only from the result file."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.report.case_text import describe_case
from pipeconform.report.localisation_text import localisation_lines
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.report.overview import DEFAULT, in_order, overview
from pipeconform.report.result import SEVERITY, Cell, Result, Violation
from pipeconform.report.timeline_text import timeline_lines
from pipeconform.report.words import (
    COLOURS,
    WORDS,
    claimed_elsewhere,
    counted,
    plural,
    reservation,
    returned_unclaimed,
    under,
)
from pipeconform.spec import Level, Requirement
from pipeconform.spec.wrappers import all_requirements

__all__ = [
    "Group",
    "grouped",
    "render_summary",
    "render_verdict",
    "replay_line",
    "slowest",
    "totals",
    "verdict",
    "violation_block",
]

_MOST_BLOCKS = 10
_MOST_LINES = 24  # of one message
_LONGEST_HEADLINE = 200
_LONG_RUN = 5.0  # seconds
_SLOWEST = 3  # requirements
_WIDEST = 100  # columns of running text
_LEVELS = {level.value: index for index, level in enumerate(Level)}


@dataclass(frozen=True, kw_only=True)
class Group:
    """The same violation under one or more schedules, which is reported once."""

    violation: Violation
    """The violation with the smallest case."""
    members: tuple[Violation, ...]
    """All violations, the smallest first."""
    requirements: tuple[str, ...]
    schedules: tuple[str, ...]
    everywhere: bool
    """Whether these are all the schedules under which the requirements were judged."""
    occurrences: int
    variants: tuple[str, ...] = (DEFAULT,)
    """The environment variants that show it, the default settings first."""

    def under(self) -> str:
        """``" under …"`` with its schedules, and its variants unless that is only the default."""
        all_of_them = self.everywhere and len(self.schedules) > 2
        words = f" under all {len(self.schedules)} schedules" if all_of_them else under(*self.schedules)
        return words if self.variants == (DEFAULT,) else f"{words} ({' and '.join(self.variants)})"


def render_overview(result: Result, console: Console) -> None:
    """Print the table and the totals."""
    for part in overview(result.cells, width=console.width):
        console.print(part)
    console.print()
    for total in totals(result):
        _print(console, Text(total))
    for note in _notes(result.cells):
        _print(console, note)


def render_summary(result: Result, console: Console, *, where: Path | None) -> None:
    """Print the table, the totals, the violations and the verdict; `where` is the result file."""
    render_overview(result, console)
    groups = grouped(result.cells)
    slow = slowest(result.cells)
    if slow:
        _print(console, Text(f"slowest: {slow}", style="dim"))
    for line in _expected(result.cells):
        _print(console, line)
    for number, group in enumerate(groups[:_MOST_BLOCKS], start=1):
        console.print()
        width = min(console.width, _WIDEST)
        _print(console, violation_block(group, number=number, width=width, where=where))
    console.print()
    if len(groups) > _MOST_BLOCKS:
        rest = plural(len(groups) - _MOST_BLOCKS, "more violation")
        _print(console, Text(f"… and {rest} in {where or 'the result file'}"))
    render_verdict(result, console)
    if where is not None:
        _print(console, Text(f"results: {where}"))


def render_verdict(result: Result, console: Console) -> None:
    """Print the verdict, preceded by required changes to the expectations file."""
    for line in _problems(result):
        _print(console, line)
    _print(console, verdict(result))


def _print(console: Console, text: Text) -> None:
    """Print without wrapping, so that columns stay aligned and commands can be copied."""
    console.print(text, soft_wrap=True, highlight=False)


# --------------------------------------------------------------------------------- what was counted


def slowest(cells: Sequence[Cell]) -> str:
    """The requirements that took the longest; empty for a short run."""
    seconds: dict[str, float] = {}
    for cell in cells:
        seconds[cell.requirement] = seconds.get(cell.requirement, 0.0) + cell.seconds
    if sum(seconds.values()) < _LONG_RUN:
        return ""
    longest = sorted(seconds, key=lambda name: -seconds[name])[:_SLOWEST]
    return ", ".join(f"{name} {seconds[name]:.0f} s" for name in longest)


def totals(result: Result) -> list[str]:
    """Lines with the counts of a run."""
    sums, least = result.totals, "" if result.run.complete else "at least "
    return [
        f"{plural(len(result.cells), 'cell')}: {counted(cell.status for cell in result.cells) or 'none'}",
        f"{plural(sums.judgements, 'judgement')} of {least}{plural(sums.executions, 'execution')}; "
        f"{least}{plural(sums.distinct_cases, 'distinct case')}, {least}"
        f"{sums.distinct_cases_several_ranks:,} of them with p ≥ 2; {result.run.seconds:.1f} s",
        *_pairs(result),
        *_nearest(result),
        *returned_unclaimed(result.cells),
        *(f"not claimed here: {one}" for one in claimed_elsewhere(result.implementation.capabilities)),
    ]


def _nearest(result: Result) -> Iterator[str]:
    """How close accepted values came to their bounds."""
    bounded = [(cell.worst_ratio, cell) for cell in result.cells if cell.worst_ratio is not None]
    if bounded:
        worst, cell = max(bounded, key=lambda one: one[0])
        yield (
            f"differences that were accepted reach {worst:.2g} of their bound "
            f"({cell.requirement} under {cell.schedule})"
        )


def _pairs(result: Result) -> Iterator[str]:
    """How many combinations of two properties were reached; nothing for a run of only some cells."""
    pairs = [one for one in result.totals.pairs if one.reachable]
    if not pairs or result.run.selection or not result.run.unrestricted:
        return
    reached, reachable = sum(one.reached for one in pairs), sum(one.reachable for one in pairs)
    least = min(pairs, key=lambda one: one.reached / one.reachable)
    yield (
        f"{reached:,} of {reachable:,} pairs of schedule, p, v, m and kind of boundary were reached; "
        f"the fewest of {least.of[0]} × {least.of[1]}, {least.reached:,} of {least.reachable:,}"
    )


def _notes(cells: Sequence[Cell]) -> Iterator[Text]:
    """Why cells were skipped or could not be judged; each reason once."""
    reasons: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.reason and cell.status != "not_claimed" and not cell.violations:
            reasons.setdefault((cell.status, cell.reason), []).append(cell)
    for (_, reason), several in reasons.items():
        first, *others = reason.strip().splitlines()
        more = f" and {plural(len(several) - 1, 'more cell')}" if len(several) > 1 else ""
        line = Text.assemble((WORDS[several[0].status], COLOURS[several[0].status]))
        variant = "" if several[0].variant == DEFAULT else f" ({several[0].variant})"
        line.append(f"  {several[0].requirement}{under(several[0].schedule)}{variant}{more}: {first}")
        for other in others[:_MOST_LINES]:
            line.append(f"\n      {other}")
        yield line


def _expected(cells: Iterable[Cell]) -> Iterator[Text]:
    """One line per entry that matched: what it covers, and how many drawn cases showed it."""
    found: dict[str, list[tuple[Cell, int]]] = {}
    for cell in cells:
        for violation in cell.violations:
            if violation.expected:
                key = f"{cell.requirement} {violation.status} '{violation.signature}'\0{violation.expected}"
                found.setdefault(key, []).append((cell, violation.occurrences))
    for key, several in found.items():
        what, _, label = key.partition("\0")
        where = under(*dict.fromkeys(cell.schedule for cell, _ in several))
        drawn = plural(sum(count for _, count in several), "drawn case")
        yield Text(f"expected: {what}{where}, in {drawn} ({label})", style="dim")


def _problems(result: Result) -> Iterator[Text]:
    """Required changes to the expectations file."""
    if result.expectations is not None:
        for problem in result.expectations.problems:
            yield Text(problem, style="bold red")


# ------------------------------------------------------------------------------------ violations


def grouped(cells: Iterable[Cell], *, expected: bool = False) -> list[Group]:
    """Violations in groups of equal ones, the most useful first: MUST before SHOULD, small before large.

    Wrong values are grouped by requirement. Errors, hangs and crashes are grouped across requirements, since any
    requirement's case may meet them. `expected` selects the violations that the expectations cover, or the others.
    """
    found: dict[tuple[str, ...], list[tuple[Cell, Violation]]] = {}
    judged: dict[str, set[str]] = {}
    for cell in cells:
        if cell.judgements:
            judged.setdefault(cell.requirement, set()).add(cell.schedule)
        for violation in cell.violations:
            if bool(violation.expected) is not expected:
                continue
            about = (cell.requirement,) if violation.status == "failed" else ()
            key = (violation.status, violation.signature, *about)
            found.setdefault(key, []).append((cell, violation))
    groups = [
        Group(
            violation=min((violation for _, violation in several), key=_size),
            members=tuple(sorted((violation for _, violation in several), key=_size)),
            requirements=tuple(dict.fromkeys(cell.requirement for cell, _ in several)),
            schedules=tuple(dict.fromkeys(cell.schedule for cell, _ in several)),
            everywhere={cell.schedule for cell, _ in several}
            == set().union(*(judged.get(cell.requirement, ()) for cell, _ in several)),
            occurrences=sum(violation.occurrences for _, violation in several),
            variants=tuple(in_order([cell.variant for cell, _ in several])),
        )
        for several in found.values()
    ]
    return sorted(groups, key=_usefulness)


def _known() -> dict[str, Requirement]:
    return {row.id: row for row in all_requirements()}


def _size(violation: Violation) -> tuple[object, ...]:
    """The sort key of size: confirmed first, then few ranks, stages and microbatches."""
    case = violation.case
    if isinstance(case, WrapperCase):
        passes = sum(len(step.passes) for step in case.steps)
        return (not violation.confirmed, case.num_ranks, 1, passes, len(case.steps), 0, violation.digest)
    return (
        not violation.confirmed,
        case.num_ranks,
        case.num_stages,
        max(run.num_microbatches for run in case.runs),
        len(case.program),
        sum(1 for _ in case.blocks()),
        violation.digest,
    )


def _usefulness(group: Group) -> tuple[object, ...]:
    known = _known()
    level = min(_LEVELS[known[r].level.value] if r in known else len(_LEVELS) for r in group.requirements)
    order = list(known)
    position = min(order.index(r) if r in known else len(order) for r in group.requirements)
    return (level, *_size(group.violation)[:3], SEVERITY.index(group.violation.status), position)


def violation_block(group: Group, *, number: int, width: int, where: Path | None) -> Text:
    """One violation in full: the requirement's sentence, where and how it is broken, the smallest case, replay."""
    violation, known = group.violation, _known()
    rows = [known[r] for r in group.requirements if r in known]
    lines = violation.message.strip("\n").splitlines() or [violation.signature]
    shown = violation.status if violation.confirmed else "flaky"
    word = (WORDS[shown], COLOURS[shown])
    body: list[str] = []
    if violation.status == "failed":
        names = ", ".join(f"{row.id} {row.title} ({row.level})" for row in rows) or violation.id
        head = Text.assemble((f"{number}. {names}: ", "bold"), word, f"{group.under()}\n")
        body += [line for row in rows for line in textwrap.wrap(row.statement, width - 3)]
        body += ["", violation.signature + (f" ({violation.where})" if violation.where else "")]
    else:
        headline, *lines = lines
        headline = textwrap.shorten(headline, _LONGEST_HEADLINE, placeholder=" …")
        head = Text.assemble((f"{number}. ", "bold"), word, f"{group.under()}: ", (f"{headline}\n", "bold"))
        met = ", ".join(f"{row.id} {row.title} ({row.level})" for row in rows)
        body += textwrap.wrap(f"in cases of {met}", width - 3) if met else []
        body.append("")
    body += [f"  {line}" for line in _cut(lines)]
    body += [f"  {line}" for line in _verdicts(violation)]
    spread = localisation_lines(violation.localisation)
    body += ["", *(f"  {line}" for line in spread)] if spread else []
    picture = timeline_lines(violation.timeline, first_wrong=violation.first_wrong, width=width - 5)
    body += ["", *(f"  {line}" for line in picture)] if picture else []
    note = reservation(violation)
    body += ["", f"smallest case, {violation.digest}" + (f" ({note}):" if note else ":")]
    body += [f"  {line}" for line in describe_case(violation.case).splitlines()]
    body.append(f"shown by {plural(group.occurrences, 'drawn case')}")
    body.append(replay_line(violation, where=where))
    return head.append("\n".join(f"   {line}".rstrip() for line in body))


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
    line = violation.replay
    if where is not None and where != DEFAULT_RESULT:
        line += f" --result {shlex.quote(str(where))}"
    return line


def verdict(result: Result) -> Text:
    """The last line: what the run found, or why it found nothing."""
    wrong = {cell.requirement for cell in result.cells if cell.violations and not cell.is_expected}
    known = {cell.requirement for cell in result.cells if cell.is_expected} - wrong
    entries = result.expectations
    judged = {cell.requirement for cell in result.cells if cell.is_judged}
    errors = [cell for cell in result.cells if cell.status == "error" and not cell.violations]
    if not result.run.complete:
        begin = "stopped early; so far "
    elif errors:
        begin = f"{plural(len(errors), 'cell')} could not be judged; otherwise "
    else:
        begin = ""
    name = f"{result.implementation.name} {result.implementation.version}"
    if wrong:
        text = f"{name} violates {len(wrong)} of {plural(len(judged), 'judged requirement')}"
        order = {identifier: at for at, identifier in enumerate(_known())}
        named = sorted(wrong, key=lambda identifier: (order.get(identifier, len(order)), identifier))
        return Text(f"{begin}{text}: {', '.join(named)}", style="bold red")
    if not judged:
        return Text(f"{begin}nothing was judged", style="bold yellow")
    if known or (entries is not None and entries.problems):
        text = f"{name} violates what is expected ({', '.join(sorted(known, key=list(_known()).index))})"
        text = f"{text} and nothing else" if known else f"{name} violates nothing"
        if entries is not None and entries.problems:
            number = plural(len(entries.problems), "thing")
            return Text(f"{begin}{text}; {entries.file}: {number} to change", style="bold red")
        return Text(f"{begin}{text}", style="bold yellow" if begin else "bold green")
    text = f"{name} meets {'the one' if len(judged) == 1 else f'all {len(judged)}'} judged requirement"
    text += "" if len(judged) == 1 else "s"
    void = {cell.requirement for cell in result.cells if cell.status == "nothing_compared"} - judged
    if void:
        text += f"; nothing was compared for {', '.join(sorted(void, key=list(_known()).index))}"
    return Text(f"{begin}{text}", style="bold yellow" if begin or void else "bold green")
