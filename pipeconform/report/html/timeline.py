"""Computations placed in time: those that ran, and those that the named schedule prescribes.

A result contains the order in which every rank computed, not the times. The simulator places that order on a common
clock with F = I = W = 1 and B = 2, so that a picture shows who waits for whom.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pipeconform.case.case import Case, Eval, Train
from pipeconform.errors import PipeconformError
from pipeconform.report.html.claims import family_of
from pipeconform.report.html.place import Place, case_in
from pipeconform.report.result import Implementation, Violation
from pipeconform.report.timeline_text import table_of
from pipeconform.schedule import Action, Kind, Table, generate, simulate
from pipeconform.schedule.drawing import Cell, cells

__all__ = ["Plot", "executed_plot", "named_plot"]

_UNTIMED = 1.0  # length of a computation in a picture without a clock
_MOST = 4_000
"""The most computations in one picture."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """The computations of each pipeline rank, in order."""

    lanes: tuple[tuple[Cell, ...], ...]
    makespan: float
    timed: bool
    """False if the order cannot be simulated; computations are then drawn one after the other."""


def executed_plot(violation: Violation) -> Plot | None:
    """What ran in the step of a violation; None if that was not observed or cannot be drawn."""
    if violation.timeline is None or sum(map(len, violation.timeline)) > _MOST:
        return None
    try:
        lanes = [[Action.parse(text) for text in lane] for lane in violation.timeline]
    except PipeconformError:
        return None
    case = case_in(violation)
    if len(lanes) != case.num_ranks or any(a.kind > Kind.W for lane in lanes for a in lane):
        return None
    return _timed(lanes, num_stages=case.num_stages) or _in_order(lanes)


def named_plot(violation: Violation, place: Place, implementation: Implementation) -> Plot | None:
    """What the named schedule prescribes in the step of a violation; None if the name is not known.

    If no step is known, the first training step is taken, or else the first step that runs the pipeline.
    """
    case = case_in(violation)
    run = _run_of(case, place)
    known = family_of(case, implementation)
    if known is None or run is None:
        return None
    return _named(
        known.name, case.num_ranks, case.stages_per_rank, run.num_microbatches, isinstance(run, Eval)
    )


def _run_of(case: Case, place: Place) -> Train | Eval | None:
    if place.step is None:
        return next(iter((*case.trains, *case.runs)))
    step = case.program[place.step] if place.step < len(case.program) else None
    return step if isinstance(step, Train | Eval) else None


@functools.lru_cache(maxsize=512)
def _named(name: str, p: int, v: int, m: int, forward_only: bool) -> Plot | None:
    try:
        table = generate(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
    except PipeconformError:  # the family has no table of this size
        return None
    if table.num_entries > _MOST or table.num_chains > 1:
        return None
    if not forward_only:
        return _plot(table)
    lanes = [
        [leaf for action in table[rank] for leaf in action.leaves if leaf.kind is Kind.F] for rank in range(p)
    ]
    return _timed(lanes, num_stages=p * v)


def _timed(lanes: Sequence[Sequence[Action]], *, num_stages: int) -> Plot | None:
    """The lanes on a common clock; None if they cannot be simulated."""
    if any(action.stage >= num_stages for lane in lanes for action in lane):
        return None
    try:
        return _plot(table_of(lanes, num_stages=num_stages))
    except PipeconformError:
        return None


def _plot(table: Table) -> Plot:
    simulation = simulate(table)
    lanes: list[list[Cell]] = [[] for _ in range(table.num_ranks)]
    for cell in cells(simulation):
        lanes[cell.rank].append(cell)
    return Plot(lanes=tuple(map(tuple, lanes)), makespan=simulation.makespan, timed=True)


def _in_order(lanes: Sequence[Sequence[Action]]) -> Plot:
    placed = tuple(
        tuple(
            Cell(rank, action.kind, action.stage, action.microbatch or 0, at * _UNTIMED, (at + 1) * _UNTIMED)
            for at, action in enumerate(lane)
        )
        for rank, lane in enumerate(lanes)
    )
    return Plot(lanes=placed, makespan=max(map(len, placed), default=0) * _UNTIMED, timed=False)
