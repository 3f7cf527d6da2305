"""Plans that are wrong on purpose, on all ranks or on one, as data.

`pipeconform.case.planned` computes the case that each rank is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pipeconform.case.strict import Strict
from pipeconform.claims import MistakeKind

__all__ = ["UNKNOWN_SCHEDULE", "HowPlanned", "Misplan", "impossible_misplan", "num_surplus"]

HowPlanned = Literal[
    "remainder", "single", "schedule", "stages", "microbatches", "metadata", "shape", "dtype"
]

UNKNOWN_SCHEDULE = "NoSuchSchedule"


class Misplan(Strict, frozen=True, kw_only=True):
    """What is wrong in the plan.

    On every rank: one stage more than a multiple of the ranks (``remainder``), two stages per rank under a schedule for
    one (``single``), an unknown schedule (``schedule``), or a `stage` whose declared output has another ``shape`` or
    ``dtype`` than the declared input of the next stage. On one rank only: one more stage per rank (``stages``), another
    `number` of ``microbatches``, no description of the boundaries (``metadata``), or an unknown schedule.

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
        return MistakeKind.NEIGHBOURS if self.how in ("shape", "dtype") else MistakeKind.PLAN

    def in_words(self) -> str:
        """The mistake in words, such as ``the plan of pipeline rank 1 has 3 microbatches``."""
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


def impossible_misplan(one: Misplan, *, num_ranks: int, num_stages: int) -> Iterator[str]:
    """Yield the reasons why such a wrong plan is impossible."""
    name = "world.misplan"
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
