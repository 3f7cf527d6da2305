"""The page's view of one result: its first screen, its causes in order of harm, and the facts about its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeconform.plural import plural
from pipeconform.report.cause_text import blocked_lines, counted
from pipeconform.report.causes import Cause
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.html.coverage import CoverageView, coverage_view
from pipeconform.report.html.failure import CauseView, cause_view
from pipeconform.report.html.levels import LevelsView, levels_view
from pipeconform.report.html.opening import Opening, opening_of
from pipeconform.report.html.source import Source
from pipeconform.report.html.status import StatusView, status_view
from pipeconform.report.html.together import TogetherView, together_view
from pipeconform.report.result import Cell, Result
from pipeconform.report.summary import totals
from pipeconform.report.words import claimed_elsewhere, under
from pipeconform.showing import shown
from pipeconform.spec import Requirement

__all__ = ["HarmView", "ResultView", "result_view"]


@dataclass(frozen=True, kw_only=True)
class HarmView:
    """The causes of one class of harm."""

    words: str
    anchor: str
    start: int
    """The number of the first one."""
    causes: tuple[CauseView, ...]


@dataclass(frozen=True, kw_only=True)
class ResultView:
    """One result on the page."""

    label: str
    name: str
    opening: Opening
    levels: LevelsView
    run: tuple[str, ...]
    """The run in a line: profile, day, standard, torch, device."""
    totals: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    variables: tuple[tuple[str, str, str], ...]
    """Variant, name and effective value of environment variables."""
    notes: tuple[tuple[StatusView, str, str], ...]
    """Cells without a verdict: status, cells and reason."""
    problems: tuple[str, ...]
    """Required changes to the expectations file."""
    counted: str
    """How many causes there are, in how many requirements; empty if there is none."""
    harms: tuple[HarmView, ...]
    """The causes by class of harm, the worst first."""
    expected: tuple[CauseView, ...]
    """Causes whose violations the expectations cover."""
    blocked: tuple[str, ...]
    """Which requirements each one blocks."""
    coverage: CoverageView | None
    """What the cases executed of the implementation, if it was measured."""
    together: TogetherView | None
    """Which two claimed things were in one case, if any were."""

    @property
    def causes(self) -> tuple[CauseView, ...]:
        """All causes that are not expected."""
        return tuple(cause for harm in self.harms for cause in harm.causes)


def result_view(source: Source, *, causes: Sequence[Cause], known: Mapping[str, Requirement]) -> ResultView:
    """The view of a result with these causes; `known` has the requirements of the standard."""
    result = source.result
    accusing = [cause for cause in causes if not cause.expected]

    def view(cause: Cause) -> CauseView:
        return cause_view(
            cause,
            anchors=source.anchors,
            implementation=result.implementation,
            known=known,
            where=source.path,
        )

    opening = opening_of(result, causes=causes)
    return ResultView(
        label=source.label,
        name=source.name,
        opening=opening,
        levels=levels_view(opening.levels, source=source, causes=causes, known=known),
        run=tuple(_run(source)),
        totals=tuple(totals(result)),
        facts=tuple(_facts(source)),
        variables=tuple(
            (variant, name, "not set" if value is None else value)
            for variant, values in result.environment.variables.items()
            for name, value in values.items()
        ),
        notes=tuple(_notes(result)),
        problems=() if result.expectations is None else result.expectations.problems,
        counted=counted(accusing) if accusing else "",
        harms=tuple(
            HarmView(
                words=HARM[harm],
                anchor=f"harm-{source.label}-{harm}" if source.label else f"harm-{harm}",
                start=1 + sum(cause.harm < harm for cause in accusing),
                causes=tuple(view(cause) for cause in accusing if cause.harm is harm),
            )
            for harm in dict.fromkeys(cause.harm for cause in accusing)
        ),
        expected=tuple(view(cause) for cause in causes if cause.expected),
        blocked=tuple(blocked_lines(causes)),
        coverage=None if result.coverage is None else coverage_view(result.coverage),
        together=together_view(result),
    )


def _run(source: Source) -> Iterator[str]:
    """What a reader wants to know of the run before anything else."""
    result = source.result
    yield f"profile {result.run.profile}"
    yield result.created[:10]
    yield f"standard {result.standard_version}"
    if result.environment.torch != result.implementation.version:
        yield f"torch {result.environment.torch}"
    yield result.environment.device


def _facts(source: Source) -> Iterator[tuple[str, str]]:
    """Names and values that describe the run and its environment."""
    result, run, place = source.result, source.result.run, source.result.environment
    yield "implementation", f"{result.implementation.name} {result.implementation.version}"
    yield "adapter", result.implementation.reference
    yield "standard", result.standard_version
    yield "pipeconform", result.product_version
    yield "made", result.created.replace("T", " ").replace("+00:00", " UTC")
    yield "profile", f"{run.profile}, seed {run.seed}, up to {plural(run.max_ranks, 'rank')}"
    if run.selection:
        yield "selection", run.selection
    if result.expectations is not None:
        yield "expectations", f"{result.expectations.file}, {result.expectations.entries} entries"
    if not run.complete:
        yield "complete", "no: the run was stopped early, cells are missing"
    unclaimed = sorted({name for cell in result.cells for name in cell.unclaimed})
    if unclaimed:
        yield "returned, not claimed", ", ".join(f"Feature.{name.upper()}" for name in unclaimed)
    for text in claimed_elsewhere(result.implementation.capabilities):
        yield "not claimed here", text
    yield "torch", place.torch
    yield "python", place.python
    yield "device", ", ".join([place.device, *dict.fromkeys(place.device_names)]) + f"; {place.backend}"
    yield "machine", f"{place.os}, {place.machine}, {place.cpus} CPUs"
    yield "result file", str(source.path)


def _notes(result: Result) -> Iterator[tuple[StatusView, str, str]]:
    """Why cells have no verdict; each reason once."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in result.cells:
        if cell.reason and not cell.violations and cell.status != "not_claimed":
            found.setdefault((cell.status, cell.reason), []).append(cell)
    for (_, reason), several in found.items():
        more = f" and {len(several) - 1} more" if len(several) > 1 else ""
        words = f"{several[0].requirement}{under(several[0].schedule)}{more}"
        text = f"{reason}\n{several[0].replay(result.implementation)}".rstrip("\n")
        yield status_view(several[0].status), words, shown(text)
