"""The summary at the end of a run, made only from the result file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeconform.plural import plural
from pipeconform.report.cause_text import blocked_lines, cause_block, cause_list, with_result
from pipeconform.report.causes import Cause, Known, causes_of
from pipeconform.report.coverage_text import coverage_lines
from pipeconform.report.levels_text import level_lines, next_lines
from pipeconform.report.overview import DEFAULT, overview
from pipeconform.report.result import Cell, Result
from pipeconform.report.together_text import missing_lines, together_lines
from pipeconform.report.words import (
    COLOURS,
    WORDS,
    claimed_elsewhere,
    counted,
    returned_unclaimed,
    under,
)
from pipeconform.spec import Level
from pipeconform.spec.wrappers import all_requirements

__all__ = ["render_overview", "render_summary", "render_verdict", "slowest", "totals", "verdict"]

_MOST_BLOCKS = 10
_MOST_LINES = 24  # of one reason
_LONG_RUN = 5.0  # seconds
_SLOWEST = 3  # requirements
_WIDEST = 100  # columns of running text


def render_overview(
    result: Result, console: Console, *, where: Path | None = None, verbose: bool = False
) -> None:
    """Print the table and the totals; why cells were skipped only if `verbose`. `where` is the result file."""
    for part in overview(result.cells, width=console.width):
        console.print(part)
    console.print()
    for total in totals(result):
        _print(console, Text(total))
    if result.coverage is not None:
        for line in coverage_lines(result.coverage):
            _print(console, Text(line))
    for line in missing_lines(result) if verbose else ():
        _print(console, Text(line))
    for note in _notes(result, where=where, verbose=verbose):
        _print(console, note)


def render_summary(
    result: Result,
    console: Console,
    *,
    where: Path | None,
    known: Sequence[Known] | None = None,
    verbose: bool = False,
) -> None:
    """Print the table, the totals, the causes, the levels and the verdict; after a green run also what to do next.

    `where` is the result file; `known` lists findings, as in `causes_of`; `verbose` is as for `render_overview`.
    """
    render_overview(result, console, where=where, verbose=verbose)
    every = causes_of(result, known=known)
    causes = [cause for cause in every if not cause.expected]
    slow = slowest(result.cells)
    if slow:
        _print(console, Text(f"slowest: {slow}", style="dim"))
    for line in _expected(result.cells):
        _print(console, line)
    for number, cause in enumerate(causes[:_MOST_BLOCKS], start=1):
        console.print()
        width = min(console.width, _WIDEST)
        _print(console, cause_block(cause, number=number, width=width, where=where))
    console.print()
    if len(causes) > 1:
        for line in cause_list(causes, width=console.width):
            _print(console, line)
        if len(causes) > _MOST_BLOCKS:
            last = "" if len(causes) == _MOST_BLOCKS + 1 else f" to {len(causes)}"
            _print(console, Text(f"{_MOST_BLOCKS + 1}{last} in full: {where or 'the result file'}"))
        console.print()
    for text in level_lines(result, causes=every):
        _print(console, Text(text))
    render_verdict(result, console, known=known)
    if where is not None:
        for text in next_lines(result, causes=every):
            _print(console, Text(text))
        _print(console, Text(f"results: {where}"))


def render_verdict(result: Result, console: Console, *, known: Sequence[Known] | None = None) -> None:
    """Print the verdict, preceded by required changes to the expectations file and by what is blocked."""
    for line in _problems(result):
        _print(console, line)
    causes = causes_of(result, known=known)
    for text in blocked_lines(causes):
        _print(console, Text(text))
    _print(console, verdict(result, causes=causes))


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
        *together_lines(result),
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


def _notes(result: Result, *, where: Path | None, verbose: bool) -> Iterator[Text]:
    """Why cells could not be judged and, if `verbose`, why cells were skipped; each reason once."""
    reasons: dict[tuple[str, str], list[Cell]] = {}
    for cell in result.cells:
        if cell.status == "skipped" and not verbose:
            continue
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
        if command := several[0].replay(result.implementation):
            again = with_result(command, where=where)
            line.append(f"\n      once more, or in a debugger with --pdb RANK: {again}")
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


# ------------------------------------------------------------------------------------ the verdict


def verdict(result: Result, *, causes: Sequence[Cause] | None = None) -> Text:
    """The last line: what the run found, or why it found nothing; `causes` are those of the result."""
    causes = causes_of(result) if causes is None else causes
    accusing = [cause for cause in causes if not cause.expected]
    wrong = {name for cause in accusing for name in cause.requirements}
    known = {cell.requirement for cell in result.cells if cell.is_expected} - wrong
    entries = result.expectations
    judged = {cell.requirement for cell in result.cells if cell.is_judged} | wrong
    errors = [cell for cell in result.cells if cell.is_broken]
    if not result.run.complete:
        begin = "stopped early; so far "
    elif errors:
        begin = f"{plural(len(errors), 'cell')} could not be judged; otherwise "
    else:
        begin = ""
    name = f"{result.implementation.name} {result.implementation.version}"
    if wrong:
        text = f"{name} violates {len(wrong)} of {plural(len(judged), 'judged requirement')}"
        text += f" ({plural(len(accusing), 'cause')})" if max(len(wrong), len(accusing)) > 1 else ""
        text += f": {', '.join(_ordered(wrong))}{_only_should(wrong)}"
        blocked = {name for cause in accusing for name in cause.blocked_requirements} - wrong
        text += f"; {len(blocked)} more {'is' if len(blocked) == 1 else 'are'} blocked" if blocked else ""
        return Text(f"{begin}{text}", style="bold red")
    if not judged:
        return Text(f"{begin}nothing was judged", style="bold yellow")
    if known or (entries is not None and entries.problems):
        text = f"{name} violates what is expected ({', '.join(_ordered(known))})"
        text = f"{text} and nothing else" if known else f"{name} violates nothing"
        if entries is not None and entries.problems:
            number = plural(len(entries.problems), "thing")
            return Text(f"{begin}{text}; {entries.file}: {number} to change", style="bold red")
        return Text(f"{begin}{text}", style="bold yellow" if begin else "bold green")
    text = f"{name} meets {'the one' if len(judged) == 1 else f'all {len(judged)}'} judged requirement"
    text += "" if len(judged) == 1 else "s"
    void = {cell.requirement for cell in result.cells if cell.status == "nothing_compared"} - judged
    if void:
        text += f"; nothing was compared for {', '.join(_ordered(void))}"
    return Text(f"{begin}{text}", style="bold yellow" if begin or void else "bold green")


def _ordered(names: Iterable[str]) -> list[str]:
    """Requirements in the order of the standard; those that it does not have come last."""
    order = {row.id: at for at, row in enumerate(all_requirements())}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def _only_should(names: Iterable[str]) -> str:
    """Which of these requirements are not binding."""
    levels = {row.id: row.level for row in all_requirements()}
    should = [name for name in _ordered(names) if name in levels and levels[name] is not Level.MUST]
    return f" (only SHOULD: {', '.join(should)})" if should else ""
