"""The report of a process that judges cells, apart from the code that judges: its reader must stay light."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pipeconform.campaign.pairs import Point
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.report.result import Environment, Implementation

__all__ = ["Told", "Weight", "group_of"]


class Weight(NamedTuple):
    """What it costs to judge a group of cells; the heaviest groups start first."""

    num_ranks: int
    """The ranks of its largest cases."""
    num_cells: int
    """The cells that are judged, not skipped."""


class Told(msgspec.Struct, frozen=True):
    """What a process that judged cells reports at its end."""

    environment: Environment
    implementation: Implementation
    schedules: tuple[str, ...]
    executed: dict[str, int]
    num_ranks: dict[str, int]
    reached: tuple[Point, ...]
    reachable: tuple[Point, ...]
    max_ranks: int = 0
    """The largest number of ranks that cases could use here; 0: as many as were asked for."""
    search: int = 0
    """How many cases the search tries for each cell beyond the drawn ones."""


def group_of(requirement: str, schedule: str) -> str:
    """The name of a cell's group: cells of one schedule share executions and, across variants, small cases.

    A wrapper's requirements share none.
    """
    return requirement if schedule == WRAPPER_COLUMN else schedule
