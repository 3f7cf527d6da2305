"""The page's view of one violation, and of a cause with all its violations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pipeconform.case.any_case import schedule_of
from pipeconform.case.case import Case
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.report.case_text import describe_case
from pipeconform.report.cause_text import replay_line, shown_as
from pipeconform.report.causes import Cause, Known
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.html.case_picture import draw_case
from pipeconform.report.html.claims import owners_of
from pipeconform.report.html.gantt import MEANING, Marks, draw_gantt, waits
from pipeconform.report.html.message import Message, RankVerdict, message_of, verdicts_of
from pipeconform.report.html.place import Place, case_in, place_of, suspects
from pipeconform.report.html.program import StepView, facts_of, steps_of
from pipeconform.report.html.spread import SpreadView, spread_view
from pipeconform.report.html.status import EXPECTED, StatusView, status_view
from pipeconform.report.html.timeline import Plot, executed_plot, named_plot
from pipeconform.report.html.waits import WaitsView, waits_view
from pipeconform.report.html.wrapper_case import where_of, wrapper_facts, wrapper_steps
from pipeconform.report.result import Control, Implementation, Violation
from pipeconform.report.words import control_words, reservation, under
from pipeconform.schedule import Kind
from pipeconform.showing import shown
from pipeconform.spec import Requirement

__all__ = ["CauseView", "Chart", "ControlView", "FailureView", "KnownView", "cause_view"]

_BLOCKED = status_view("blocked")
_MOST_CONTROL = 24  # lines of what a control showed
_MOST_PICTURE = 64
"""The most stages in a picture; larger cases are described only in words."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Gantt chart with its heading, note and legend."""

    heading: str
    note: str
    svg: Markup
    legend: tuple[tuple[str, str], ...]
    """The kinds of computation that occur: letter and meaning."""
    waits: bool
    lanes: tuple[tuple[str, str, str], ...]
    """The same in words: each rank's label, its computations in order, and whose results it waits for."""


@dataclass(frozen=True, kw_only=True)
class ControlView:
    """What the execution showed that a violation was held against."""

    words: str
    lines: tuple[str, ...]
    """What it found; empty if nothing."""
    digest: str


@dataclass(frozen=True, kw_only=True)
class KnownView:
    """A finding that a cause is known as."""

    words: str
    links: tuple[str, ...]
    """Addresses that can be followed."""
    files: tuple[str, ...]
    """Paths of files, which cannot."""


@dataclass(frozen=True, kw_only=True)
class FailureView:
    """One violation."""

    anchor: str
    identifier: str
    requirement: str
    under: str
    """``" under …"`` with its schedule, if it has one."""
    where: tuple[str, ...]
    message: Message
    verdicts: tuple[RankVerdict, ...]
    waits: WaitsView | None
    """For a hang, who waits for whom, if that is known."""
    facts: tuple[tuple[str, str], ...]
    steps: tuple[StepView, ...]
    picture: Markup | None
    charts: tuple[Chart, ...]
    spread: SpreadView | None
    """The first wrong tensor, and how the error spreads from it."""
    words: str
    """The case as text."""
    digest: str
    reservation: str
    expected: str
    """The entry of an expectations file that covers it."""
    replay: str
    occurrences: int
    control: ControlView | None
    found_by: str
    """The violation whose control showed this one."""


@dataclass(frozen=True, kw_only=True)
class CauseView:
    """A cause, with the violation that shows it best and all others."""

    anchor: str
    status: StatusView
    harm: str
    heading: str
    signature: str
    under: str
    chance: str
    """How often it shows, if not every time."""
    known: tuple[KnownView, ...]
    requirements: tuple[Requirement, ...]
    """The requirements that it violates, the telling one first."""
    first: FailureView
    others: tuple[FailureView, ...]
    blocked: tuple[FailureView, ...]
    """Violations that are effects of it."""
    letters: str
    """Its status and those of what it blocks, for filters."""
    schedules: tuple[str, ...]
    chapters: tuple[str, ...]
    levels: tuple[str, ...]
    search: str


def cause_view(
    cause: Cause,
    *,
    anchors: Mapping[str, str],
    implementation: Implementation,
    known: Mapping[str, Requirement],
    where: Path,
) -> CauseView:
    """The view of a cause; `anchors` maps a violation's id to its fragment on the page."""

    def view(violation: Violation) -> FailureView:
        return _failure(violation, anchor=anchors[violation.id], implementation=implementation, where=where)

    rows = tuple(known[name] for name in cause.requirements if name in known)
    effects = [one.violation for one in cause.blocked if one.violation is not cause.violation]
    first, *others = [one.violation for one in cause.own] or [cause.violation]
    heading = f"{cause.requirement} {cause.title}".rstrip()
    status = EXPECTED if cause.expected else status_view(cause.violation.status)
    signature = shown(shown_as(cause))
    chance = "" if cause.chance is None else f"shown in {cause.chance[0]} of {cause.chance[1]} executions"
    names = dict.fromkeys((*cause.requirements, *cause.blocked_requirements))
    words = [*(f"{name} {known[name].title}" if name in known else name for name in names)]
    words += [f"{entry.id} {entry.title}" for entry in cause.known]
    return CauseView(
        anchor=f"{anchors[first.id]}-group",
        status=status,
        harm=HARM[cause.harm],
        heading=heading,
        signature=signature,
        under=cause.under(),
        chance=chance,
        known=tuple(_known_view(entry) for entry in cause.known),
        requirements=rows,
        first=view(first),
        others=tuple(map(view, others)),
        blocked=tuple(map(view, effects)),
        letters=" ".join([status.letter, *([_BLOCKED.letter] if cause.blocked else [])]),
        schedules=tuple(dict.fromkeys([*cause.schedules, *(one.schedule for one in cause.blocked)])),
        chapters=tuple(dict.fromkeys(name.partition("-")[0] for name in names)),
        levels=tuple(dict.fromkeys(row.level.value for row in rows)),
        search=" ".join([*words, signature, *cause.schedules]).lower(),
    )


def _known_view(entry: Known) -> KnownView:
    places = tuple(filter(None, (entry.link, entry.thread)))
    links = tuple(place for place in places if place.startswith(("https://", "http://")))
    return KnownView(
        words=f"known as {entry.id}: {entry.title}",
        links=links,
        files=tuple(place for place in places if place not in links),
    )


def _control_view(control: Control | None) -> ControlView | None:
    if control is None:
        return None
    text = "\n".join(filter(None, (control.where, control.message))) if control.requirement else ""
    return ControlView(
        words=shown(control_words(control)),
        lines=tuple(shown(text).splitlines()[:_MOST_CONTROL]),
        digest=control.digest,
    )


def _failure(
    violation: Violation, *, anchor: str, implementation: Implementation, where: Path
) -> FailureView:
    case = violation.case
    said = (
        _of_a_wrapper(violation, case)
        if isinstance(case, WrapperCase)
        else _of_a_pipeline(violation, implementation)
    )
    return FailureView(
        anchor=anchor,
        identifier=violation.id,
        requirement=violation.id.partition(":")[0],
        under=under(schedule_of(case)),
        where=said.where,
        message=message_of(violation),
        verdicts=verdicts_of(violation),
        waits=waits_view(violation.places),
        facts=said.facts,
        steps=said.steps,
        picture=said.picture,
        charts=said.charts,
        spread=spread_view(violation.localisation),
        words=describe_case(case),
        digest=violation.digest,
        reservation=reservation(violation),
        expected=violation.expected,
        replay=replay_line(violation, where=where),
        occurrences=violation.occurrences,
        control=_control_view(violation.control),
        found_by=violation.found_by,
    )


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The parts that differ between pipelines and wrappers."""

    where: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    steps: tuple[StepView, ...]
    picture: Markup | None = None
    charts: tuple[Chart, ...] = ()


def _of_a_wrapper(violation: Violation, case: WrapperCase) -> _Told:
    return _Told(
        where=where_of(violation), facts=wrapper_facts(case), steps=wrapper_steps(case, violation.where)
    )


def _of_a_pipeline(violation: Violation, implementation: Implementation) -> _Told:
    case, place = case_in(violation), place_of(violation)
    labels = _labels(case)
    picture = None
    if case.num_stages <= _MOST_PICTURE:
        picture = draw_case(
            case,
            owners=owners_of(case, implementation),
            labels=labels,
            bad_stage=_stage(violation, place),
            bad_rank=place.pipeline_rank(case),
        )
    return _Told(
        where=place.parts(case),
        facts=facts_of(case),
        steps=steps_of(case, place),
        picture=picture,
        charts=tuple(_charts(violation, place, implementation, labels)),
    )


def _labels(case: Case) -> list[str]:
    """Names of pipeline ranks by their rank in the world, as in messages."""
    return [f"rank {rank}" for rank in case.world.pipeline_ranks]


def _stage(violation: Violation, place: Place) -> int | None:
    """The stage at fault; outputs and losses come from the last one."""
    of_last = violation.signature.startswith(("output", "no output", "loss", "no loss", "number of losses"))
    if place.stage is None and violation.status == "failed" and of_last:
        return case_in(violation).num_stages - 1
    return place.stage


def _charts(
    violation: Violation, place: Place, implementation: Implementation, labels: list[str]
) -> Iterator[Chart]:
    """Charts of what ran, if that was observed, and of the named schedule, if that differs or nothing was observed."""
    ran, named = executed_plot(violation), named_plot(violation, place, implementation)
    step = "" if place.step is None else f" in step {place.step}"
    if ran is not None:
        wrong = violation.first_wrong
        yield _chart(
            ran,
            violation,
            place,
            labels,
            heading=f"What ran{step}",
            wrong=wrong,
            wrong_words="first wrong" if wrong is None or _is_there(ran, wrong) else "missing",
            note="The order in which each rank computed, as observed inside its stages." + _clock(ran),
        )
        if named is not None and wrong is not None:
            yield _chart(
                named,
                violation,
                place,
                labels,
                heading=f"What {case_in(violation).schedule} asks for",
                wrong=wrong,
                wrong_words="was due",
                note="The named schedule, for comparison.",
            )
    elif named is not None:
        yield _chart(
            named,
            violation,
            place,
            labels,
            heading=f"Where that is in {case_in(violation).schedule}",
            wrong=None,
            wrong_words="",
            note=(
                "The order that the schedule's name asks for: what ran was not recorded, because "
                + (
                    "this requirement is not judged by it."
                    if violation.status == "failed"
                    else "not every rank returned."
                )
                + _clock(named)
            ),
        )


def _is_there(plot: Plot, at: tuple[int, int]) -> bool:
    return at[0] < len(plot.lanes) and at[1] < len(plot.lanes[at[0]])


def _clock(plot: Plot) -> str:
    if not plot.timed:
        return " This order cannot be simulated, so computations are drawn one after the other."
    return " Lengths are not measured: F, I and W count 1, B counts 2; hatched is waiting."


def _chart(
    plot: Plot,
    violation: Violation,
    place: Place,
    labels: list[str],
    *,
    heading: str,
    wrong: tuple[int, int] | None,
    wrong_words: str,
    note: str,
) -> Chart:
    if wrong is not None and not 0 <= wrong[0] < len(plot.lanes):
        wrong = None
    marked = frozenset() if wrong else frozenset(_suspected(plot, violation, place))
    if marked:
        note += " Framed with dashes: the computations that the violation is about."
    marks = Marks(
        lane=place.pipeline_rank(case_in(violation)) if wrong is None else wrong[0],
        wrong=wrong,
        wrong_words=wrong_words,
        suspects=marked,
    )
    lanes = tuple(
        (
            labels[rank],
            " ".join(cell.label for cell in lane),
            ", ".join(dict.fromkeys(wait.source or "something" for wait in waits(plot, rank, labels=labels))),
        )
        for rank, lane in enumerate(plot.lanes)
    )
    kinds = sorted({cell.kind for lane in plot.lanes for cell in lane})
    return Chart(
        heading=heading,
        note=note,
        legend=tuple((kind.name, MEANING[kind]) for kind in kinds),
        waits=any(words for _, _, words in lanes),
        svg=draw_gantt(plot, labels=labels, marks=marks, title=f"{heading}; the same in words is below"),
        lanes=lanes,
    )


def _suspected(plot: Plot, violation: Violation, place: Place) -> Iterator[tuple[int, int]]:
    """The computations of the stage and microbatch at fault."""
    kinds: frozenset[Kind] = suspects(violation, place)
    stage = _stage(violation, place)
    rank = place.pipeline_rank(case_in(violation))
    for lane, cells in enumerate(plot.lanes):
        for at, cell in enumerate(cells):
            if (
                cell.kind in kinds
                and (stage is None or cell.stage == stage)
                and (stage is not None or rank is None or lane == rank)
                and place.microbatch in (None, cell.microbatch)
            ):
                yield lane, at
