"""The page for one result or several: a single file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeconform.report.cause_text import blocked_lines, counted
from pipeconform.report.causes import Cause, Known, causes_of
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.html.comparison import differences, warnings
from pipeconform.report.html.failure import CauseView, cause_view
from pipeconform.report.html.matrix import Matrix, matrix
from pipeconform.report.html.source import Source, named_sources
from pipeconform.report.html.status import EXPECTED, NOT_RUN, StatusView, status_view
from pipeconform.report.result import SEVERITY, Cell, Result
from pipeconform.report.summary import totals, verdict
from pipeconform.report.words import claimed_elsewhere, under
from pipeconform.showing import shown
from pipeconform.spec import Requirement
from pipeconform.spec.wrappers import all_requirements

__all__ = ["environment", "policy", "render_page", "style_and_script"]

_PACKAGE = "pipeconform.report.html"


@dataclass(frozen=True, kw_only=True)
class HarmView:
    """The causes of one class of harm."""

    words: str
    start: int
    """The number of the first one."""
    causes: tuple[CauseView, ...]


@dataclass(frozen=True, kw_only=True)
class ResultView:
    """One result on the page: its summary and its violations."""

    label: str
    name: str
    verdict: str
    good: bool
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

    @property
    def causes(self) -> tuple[CauseView, ...]:
        """All causes that are not expected."""
        return tuple(cause for harm in self.harms for cause in harm.causes)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of a filter."""

    value: str
    words: str


def render_page(
    results: Sequence[tuple[Result, Path]], *, known_causes: Sequence[Known] | None = None
) -> str:
    """The page as HTML; each result comes with the file it was read from, which replay lines name.

    `known_causes` lists findings, as in `causes_of`.

    Raises:
        ValueError: there is no result.
    """
    if not results:
        raise ValueError("a page needs a result")
    known = {row.id: row for row in all_requirements()}
    sources = named_sources(results)
    grid = matrix(sources, known=known)
    style, script = style_and_script()
    templates = environment()
    templates.filters["camel"] = _breakable
    return templates.get_template("page.html").render(
        title=" and ".join(_title(source) for source in sources) + f": {_subject(sources)}",
        subject=_subject(sources),
        views=[_view(source, known=known, entries=known_causes) for source in sources],
        grid=grid,
        differences=differences(sources, known=known) if len(sources) > 1 else (),
        warnings=warnings(sources) if len(sources) > 1 else (),
        statuses=list(_statuses(grid)),
        schedules=_choices(cell.schedule for source in sources for cell in source.result.cells),
        chapters=_chapters(grid),
        levels=_choices(row.level for chapter in grid.chapters for row in chapter.rows if row.level),
        style=style,
        script=script,
        policy=policy(script),
    )


def environment() -> Environment:
    """Jinja with our templates; text is escaped."""
    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )


def style_and_script() -> tuple[Markup, Markup]:
    """The contents of our style sheet and of our script."""
    style, script = (
        resources.files(_PACKAGE).joinpath("templates", name) for name in ("page.css", "page.js")
    )
    return Markup(style.read_text("utf-8")), Markup(script.read_text("utf-8"))  # noqa: S704 - our own files


def _fit(value: object) -> object:
    """A value as a template prints it, control characters escaped; pictures are markup already and stay as they are."""
    if isinstance(value, Markup):
        return Markup(shown(str(value), limited=False))  # noqa: S704 - escapes hold no markup
    return shown(value) if isinstance(value, str) else value


def _breakable(name: str) -> Markup:
    """A CamelCase name with possible line breaks between its words."""
    words = re.findall(r"[A-Z]+(?![a-z])[^A-Za-z\d]*|[A-Z]?[a-z]+[^A-Za-z\d]*|\d[\dA-Z]*[^A-Za-z\d]*", name)
    return Markup("<wbr>").join(words if "".join(words) == name else [name])


def policy(script: str) -> str:
    """The content security policy: nothing is loaded, and only our own script runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{what} {who}" for what, who in allowed.items())


def _subject(sources: Sequence[Source]) -> str:
    kinds = dict.fromkeys(source.result.implementation.kind for source in sources)
    return f"{' and '.join(kinds)} conformance"


def _title(source: Source) -> str:
    return f"{source.result.implementation.name} {source.result.implementation.version}"


def _view(source: Source, *, known: dict[str, Requirement], entries: Sequence[Known] | None) -> ResultView:
    result = source.result
    causes = causes_of(result, known=entries)
    accusing = [cause for cause in causes if not cause.expected]
    problems = () if result.expectations is None else result.expectations.problems

    def view(cause: Cause) -> CauseView:
        return cause_view(
            cause,
            anchors=source.anchors,
            implementation=result.implementation,
            known=known,
            where=source.path,
        )

    judged = any(cell.is_judged for cell in result.cells)
    return ResultView(
        label=source.label,
        name=source.name,
        verdict=verdict(result, causes=causes).plain,
        good=judged and result.run.complete and not accusing and not problems,
        totals=tuple(totals(result)),
        facts=tuple(_facts(source)),
        variables=tuple(
            (variant, name, "not set" if value is None else value)
            for variant, values in result.environment.variables.items()
            for name, value in values.items()
        ),
        notes=tuple(_notes(result.cells)),
        problems=problems,
        counted=counted(accusing) if accusing else "",
        harms=tuple(
            HarmView(
                words=HARM[harm],
                start=1 + sum(cause.harm < harm for cause in accusing),
                causes=tuple(view(cause) for cause in accusing if cause.harm is harm),
            )
            for harm in dict.fromkeys(cause.harm for cause in accusing)
        ),
        expected=tuple(view(cause) for cause in causes if cause.expected),
        blocked=tuple(blocked_lines(causes)),
    )


def _facts(source: Source) -> Iterator[tuple[str, str]]:
    """Names and values that describe the run and its environment."""
    result, run, place = source.result, source.result.run, source.result.environment
    yield "implementation", f"{result.implementation.name} {result.implementation.version}"
    yield "adapter", result.implementation.reference
    yield "standard", result.standard_version
    yield "pipeconform", result.product_version
    yield "made", result.created.replace("T", " ").replace("+00:00", " UTC")
    yield "profile", f"{run.profile}, seed {run.seed}, up to {run.max_ranks} ranks"
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


def _notes(cells: Sequence[Cell]) -> Iterator[tuple[StatusView, str, str]]:
    """Why cells have no verdict; each reason once."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.reason and not cell.violations and cell.status != "not_claimed":
            found.setdefault((cell.status, cell.reason), []).append(cell)
    for (_, reason), several in found.items():
        more = f" and {len(several) - 1} more" if len(several) > 1 else ""
        words = f"{several[0].requirement}{under(several[0].schedule)}{more}"
        yield status_view(several[0].status), words, shown(reason)


def _statuses(grid: Matrix) -> Iterator[tuple[StatusView, int]]:
    """The statuses that occur, worst first, each with its number of cells."""
    counts = Counter(
        entry.status
        for chapter in grid.chapters
        for row in chapter.rows
        for box in row.boxes
        for entry in box.entries
    )
    for view in (*map(status_view, SEVERITY), EXPECTED, NOT_RUN):
        if counts[view]:
            yield view, counts[view]


def _choices(values: Iterable[str]) -> tuple[Choice, ...]:
    return tuple(Choice(value=value, words=value) for value in dict.fromkeys(values))


def _chapters(grid: Matrix) -> tuple[Choice, ...]:
    found = {
        chapter.identifier: Choice(
            value=chapter.identifier, words=f"{chapter.identifier} {chapter.title}".strip()
        )
        for chapter in grid.chapters
    }
    return tuple(found.values())
