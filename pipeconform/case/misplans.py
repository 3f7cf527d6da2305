"""Plans that are wrong on purpose, on all ranks or on one, as data.

`pipeconform.case.planned` computes the case that each rank is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from pipeconform.case.strict import Strict
from pipeconform.claims import MistakeKind

__all__ = [
    "NO_COMPUTATION",
    "PLACED",
    "TABLES",
    "UNKNOWN_SCHEDULE",
    "HowPlanned",
    "Misplan",
    "impossible_misplan",
    "num_surplus",
]

HowTable = Literal[
    "no forward",
    "no backward",
    "forward twice",
    "backward twice",
    "backward first",
    "no computation",
    "other microbatch",
    "circle",
    "no line",
    "lines exchanged",
]
HowPlanned = Literal[
    "remainder", "single", "schedule", "stages", "microbatches", "metadata", "shape", "dtype", HowTable
]

TABLES: tuple[HowTable, ...] = get_args(HowTable)
"""What makes a table one that cannot be carried out."""
PLACED: tuple[HowTable, ...] = TABLES[: TABLES.index("no computation") + 1]
"""What is about one stage's computation for one microbatch."""

UNKNOWN_SCHEDULE = "NoSuchSchedule"
NO_COMPUTATION = "0X0"
"""A cell of a table that is no computation."""


class Misplan(Strict, frozen=True, kw_only=True):
    """What is wrong in the plan.

    On every rank: one stage more than a multiple of the ranks (``remainder``), two stages per rank under a schedule for
    one (``single``), an unknown schedule (``schedule``), or a `stage` whose declared output has another ``shape`` or
    ``dtype`` than the declared input of the next stage. On one rank only: one more stage per rank (``stages``), another
    `number` of ``microbatches``, no description of the boundaries (``metadata``), or an unknown schedule.

    Or the table of the case's order cannot be carried out, and every rank is given it: of a `stage` and the microbatch
    `number` it lacks the forward or the backward, has one of them twice, has the backward before the forward, or a
    cell that is ``no computation`` in the forward's place; a microbatch that the step does not have stands in the place
    of the last one (``other microbatch``); the first and the last stage wait for each other (``circle``); the last
    rank's line is missing (``no line``), or those of the first two ranks are exchanged. Of a backward in two parts, the
    second one is meant where one is missing or there twice, the first one where it comes too early.

    Surplus stages are the last ones of the case's model.
    """

    how: HowPlanned
    rank: int | None = None
    """The pipeline rank whose plan is wrong; None for every rank."""
    stage: int = 0
    number: int = 0

    @property
    def kind(self) -> MistakeKind:
        """The kind of mistake about which an implementation may promise an error."""
        if self.how in TABLES:
            return MistakeKind.TABLE
        return MistakeKind.NEIGHBOURS if self.how in ("shape", "dtype") else MistakeKind.PLAN

    def in_words(self) -> str:
        """The mistake in words, such as ``the plan of pipeline rank 1 has 3 microbatches``."""
        what = f"of stage {self.stage} for microbatch {self.number}"
        whose = "the plan" if self.rank is None else f"the plan of pipeline rank {self.rank}"
        match self.how:
            case "remainder":
                return f"{whose} has one stage more than a multiple of the ranks"
            case "single":
                return f"{whose} has two stages per rank under a schedule for one"
            case "schedule":
                return f"{whose} names a schedule that does not exist"
            case "stages":
                return f"{whose} has one more stage per rank"
            case "microbatches":
                return f"{whose} has {self.number} microbatches"
            case "metadata":
                return f"{whose} does not describe the boundaries, but the plans of the others do"
            case "no forward" | "no backward":
                return f"the table has {self.how} {what}"
            case "forward twice" | "backward twice":
                return f"the table has the {self.how.removesuffix(' twice')} {what} twice"
            case "backward first":
                return f"in the table the backward {what} is before its forward"
            case "no computation":
                return f"a cell of the table is {NO_COMPUTATION} in the place of the forward {what}"
            case "other microbatch":
                return "the table has a microbatch that the step does not have in the place of the last one"
            case "circle":
                return "in the table the first and the last stage wait for each other"
            case "no line":
                return "the table has no line for the last rank"
            case "lines exchanged":
                return "the lines of the first two ranks are exchanged in the table"
        return (
            f"the plan declares another {self.how} for the output of stage {self.stage} than for the input of stage "
            f"{self.stage + 1}"
        )


_ALONE = ("stages", "microbatches", "metadata")


def num_surplus(misplan: Misplan | None, *, num_ranks: int) -> int:
    """How many more stages a case's model has than the right plan."""
    match None if misplan is None else misplan.how:
        case "remainder":
            return 1
        case "single" | "stages":
            return num_ranks
    return 0


def impossible_misplan(
    one: Misplan, *, num_ranks: int, num_stages: int, table_of: int | None
) -> Iterator[str]:
    """Yield the reasons why such a wrong plan is impossible.

    Args:
        one: The wrong plan.
        num_ranks: p.
        num_stages: The number of stages.
        table_of: The number of microbatches of the table in the right plan; None if it has no table.
    """
    name = "world.misplan"
    if one.how in TABLES:
        yield from _impossible_table(one, num_ranks=num_ranks, num_stages=num_stages, table_of=table_of)
        return
    if one.rank is not None and not 0 <= one.rank < num_ranks:
        yield f"{name}.rank {one.rank} is outside 0…{num_ranks - 1}"
    if (one.rank is None) == (one.how in _ALONE):
        whose = "one rank's plan" if one.how in _ALONE else "every rank's plan"
        if one.how != "schedule":
            yield f"{name}.how {one.how!r} changes {whose}, but {name}.rank is {one.rank}"
    if one.how in (*_ALONE, "remainder") and num_ranks < 2:
        yield f"{name}.how {one.how!r} needs at least two ranks"
    if one.kind is MistakeKind.NEIGHBOURS and not 0 <= one.stage < num_stages - 1:
        yield f"{name}.stage {one.stage} has no stage after it"
    if (one.how == "microbatches") != (one.number > 0):
        yield f"{name}.number {one.number} must be above 0 with how 'microbatches', and 0 otherwise"


def _impossible_table(
    one: Misplan, *, num_ranks: int, num_stages: int, table_of: int | None
) -> Iterator[str]:
    name = "world.misplan"
    if table_of is None:
        yield f"{name}.how {one.how!r} changes a table, but world.order is None"
        return
    if one.rank is not None:
        yield f"{name}.how {one.how!r} changes every rank's plan, but {name}.rank is {one.rank}"
    stages, microbatches = (num_stages, table_of) if one.how in PLACED else (1, 1)
    for field, value, end in (("stage", one.stage, stages), ("number", one.number, microbatches)):
        if not 0 <= value < end:
            yield f"{name}.{field} {value} is outside 0…{end - 1} with how {one.how!r}"
    if one.how in ("circle", "no line", "lines exchanged") and num_ranks < 2:
        yield f"{name}.how {one.how!r} needs at least two ranks"
    if one.how == "circle" and table_of < 2:
        yield f"{name}.how 'circle' needs at least two microbatches, but there is one"
