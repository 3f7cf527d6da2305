"""The page's view of one violation, and of a cause with all its violations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pipeconform.case.any_case import schedule_of
from pipeconform.case.case import Case
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.plural import plural
from pipeconform.report.case_text import describe_case
from pipeconform.report.cause_text import replay_line, shown_as
from pipeconform.report.causes import Cause, Known
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.finding_words import known_as
from pipeconform.report.html.case_picture import draw_case
from pipeconform.report.html.charts import Chart, charts_of
from pipeconform.report.html.claims import owners_of
from pipeconform.report.html.message import Message, RankVerdict, message_of, verdicts_of
from pipeconform.report.html.place import case_in, place_of, stage_of
from pipeconform.report.html.program import StepView, facts_of, steps_of
from pipeconform.report.html.source import card_anchor
from pipeconform.report.html.spread import SpreadView, spread_view
from pipeconform.report.html.status import EXPECTED, StatusView, status_view, violation_views, worst_first
from pipeconform.report.html.waits import WaitsView, waits_view
from pipeconform.report.html.wrapper_case import where_of, wrapper_facts, wrapper_steps
from pipeconform.report.next_steps import next_step
from pipeconform.report.result import Control, Implementation, Violation
from pipeconform.report.words import WORDS, control_words, reservation, under
from pipeconform.showing import shown
from pipeconform.spec import Level, Requirement

__all__ = ["CauseView", "ControlView", "FailureView", "KnownView", "cause_view"]

_MOST_CONTROL = 24  # lines of what a control showed
_MOST_PICTURE = 64
"""The most stages in a picture; larger cases are described only in words."""


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
    statuses: tuple[StatusView, ...]
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
    next: str
    """What to do next; empty where there is no usual remedy."""
    control: ControlView | None
    found_by: str
    """The violation whose control showed this one."""


@dataclass(frozen=True, kw_only=True)
class CauseView:
    """A cause, with the violation that shows it best and all others."""

    anchor: str
    statuses: tuple[StatusView, ...]
    """The statuses of its violations, the worst first."""
    harm: str
    heading: str
    told: str
    """What is wrong, in the words of the finding that it is known as, or else its signature."""
    should: bool
    """Whether no binding requirement is violated."""
    signature: str
    under: str
    chance: str
    """How often it shows, if not every time."""
    known: tuple[KnownView, ...]
    requirements: tuple[tuple[Requirement, str], ...]
    """The requirements that it violates, the telling one first, each with its schedules: ``" under …"``."""
    first: FailureView
    named: bool
    """Whether `first` is not all that there is of the heading's requirement, and so needs a heading of its own."""
    shown_by: str
    """How many cases show it."""
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
    own = [one.violation for one in cause.own] or [cause.violation]
    first, *others = own
    heading = f"{cause.requirement} {cause.title}".rstrip()
    found = worst_first(status_view(status) for status, _ in cause.outcomes)
    statuses = (EXPECTED, *found) if cause.expected else found
    shown_by = worst_first(view for one in (*own, *effects) for view in violation_views(one))
    signature = shown(shown_as(cause))
    chance = "" if cause.chance is None else f"shown in {cause.chance[0]} of {cause.chance[1]} executions"
    names = dict.fromkeys((*cause.requirements, *cause.blocked_requirements))
    words = [*(f"{name} {known[name].title}" if name in known else name for name in names)]
    words += [f"{entry.id} {entry.title}" for entry in cause.known]
    return CauseView(
        anchor=card_anchor(cause, anchors),
        statuses=statuses,
        harm=HARM[cause.harm],
        heading=heading,
        told=shown(cause.known[0].title) if cause.known else signature,
        should=bool(rows) and all(row.level is not Level.MUST for row in rows),
        signature=signature,
        under=_under(cause),
        chance=chance,
        known=tuple(_known_view(entry) for entry in cause.known),
        requirements=tuple((row, cause.under(row.id)) for row in rows),
        first=view(first),
        named=bool(others) or not cause.own,
        shown_by=_shown_by(cause, first),
        others=tuple(map(view, others)),
        blocked=tuple(map(view, effects)),
        letters=" ".join(one.letter for one in dict.fromkeys((*statuses, *shown_by))),
        schedules=tuple(dict.fromkeys([*cause.schedules, *(one.schedule for one in cause.blocked)])),
        chapters=tuple(dict.fromkeys(name.partition("-")[0] for name in names)),
        levels=tuple(dict.fromkeys(row.level.value for row in rows)),
        search=" ".join([*words, signature, *cause.schedules]).lower(),
    )


def _under(cause: Cause) -> str:
    """``under GPipe``; of several outcomes ``FAIL under GPipe; ERR under 1F1B``."""
    if len(cause.outcomes) == 1:
        return cause.under()
    return "; ".join(f"{WORDS[status]}{places}" for status, places in cause.outcomes)


def _shown_by(cause: Cause, violation: Violation) -> str:
    number, here = cause.occurrences, violation.occurrences
    more = f" of this cause, {here} of them here" if here < number else ""
    return f"Shown by {plural(number, 'drawn case')}{more}."


def _known_view(entry: Known) -> KnownView:
    places = tuple(filter(None, (entry.link, entry.thread)))
    links = tuple(place for place in places if place.startswith(("https://", "http://")))
    return KnownView(
        words=known_as(entry),
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
        statuses=violation_views(violation),
        under=under(schedule_of(case)),
        where=said.where,
        message=message_of(violation),
        verdicts=verdicts_of(violation),
        waits=waits_view(violation.places),
        facts=said.facts,
        steps=said.steps,
        picture=said.picture,
        charts=said.charts,
        spread=spread_view(violation.localisation, said=violation.message),
        words=describe_case(case),
        digest=violation.digest,
        reservation=reservation(violation),
        expected=violation.expected,
        replay=replay_line(violation, where=where),
        occurrences=violation.occurrences,
        next=next_step(violation),
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
            bad_stage=stage_of(violation, place),
            bad_rank=place.pipeline_rank(case),
        )
    return _Told(
        where=place.parts(case),
        facts=facts_of(case),
        steps=steps_of(case, place),
        picture=picture,
        charts=tuple(charts_of(violation, place, implementation, labels)),
    )


def _labels(case: Case) -> list[str]:
    """Names of pipeline ranks by their rank in the world, as in messages."""
    return [f"rank {rank}" for rank in case.world.pipeline_ranks]
