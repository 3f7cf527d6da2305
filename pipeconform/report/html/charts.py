"""The Gantt charts of a violation: what ran, and what the named schedule asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeconform.report.html.gantt import MEANING, Marks, draw_gantt, waits
from pipeconform.report.html.place import Place, case_in, stage_of, suspects
from pipeconform.report.html.timeline import Plot, executed_plot, named_plot
from pipeconform.report.result import Implementation, Violation
from pipeconform.schedule import Kind

__all__ = ["Chart", "charts_of"]


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


def charts_of(
    violation: Violation, place: Place, implementation: Implementation, labels: Sequence[str]
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
    labels: Sequence[str],
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
    stage = stage_of(violation, place)
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
