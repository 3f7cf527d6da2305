"""What a process that judges cells says of itself to whoever gathers them, which imports nothing that judges."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pipeconform.campaign.pairs import Point
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.report.result import Environment, Implementation

__all__ = ["Told", "Weight", "group_of"]


class Weight(NamedTuple):
    """What it costs to judge a group of cells: the heavier is begun first."""

    num_ranks: int
    """Of its largest cases."""
    num_cells: int
    """That are judged, and not only told to be skipped."""


class Told(msgspec.Struct, frozen=True):
    """What a process that judged cells tells at its end."""

    environment: Environment
    implementation: Implementation
    schedules: tuple[str, ...]
    executed: dict[str, int]
    num_ranks: dict[str, int]
    reached: tuple[Point, ...]
    reachable: tuple[Point, ...]
    max_ranks: int = 0
    """The ranks that cases could take here; 0: as many as were asked for."""
    search: int = 0
    """Cases that are searched beyond the drawn ones for each cell."""


def group_of(requirement: str, schedule: str, variant: str) -> str:
    """The name under which cells are kept together: those that share executions, which a wrapper's do not."""
    return f"{requirement if schedule == WRAPPER_COLUMN else schedule}-{variant}"
