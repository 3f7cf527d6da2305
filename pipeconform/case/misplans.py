"""Plans that are wrong on purpose, as data: what all ranks, or one of them, are given instead.

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

    There is one stage more than a multiple of the ranks (``remainder``), there are two per rank of a schedule for one
    (``single``), or the `schedule` does not exist. One rank is given other `stages` (one per rank more),
    another `number` of `microbatches`, or as the only one no description of what crosses the boundaries
    (``metadata``). Or `stage` says that it gives tensors of another ``shape`` or ``dtype`` than the stage after it
    says that it takes.

    The surplus stages are the last ones of the case's model.
    """

    how: HowPlanned
    rank: int | None = None
    """The pipeline rank whose plan it is; None is every one."""
    stage: int = 0
    number: int = 0

    @property
    def kind(self) -> MistakeKind:
        """What an implementation may promise about it."""
        return MistakeKind.NEIGHBOURS if self.how in ("shape", "dtype") else MistakeKind.PLAN

    def in_words(self) -> str:
        """The mistake in words, such as ``the plan of pipeline rank 1 has 3 microbatches``."""
        whose = "the plan" if self.rank is None else f"the plan of pipeline rank {self.rank}"
        match self.how:
            case "remainder":
                return f"{whose} has a stage more than a multiple of the ranks"
            case "single":
                return f"{whose} has two stages per rank under a schedule for one"
            case "schedule":
                return f"{whose} names a schedule that there is not"
            case "stages":
                return f"{whose} has a stage per rank more"
            case "microbatches":
                return f"{whose} has {self.number} microbatches"
            case "metadata":
                return f"{whose} says nothing of the boundaries, and the others' do"
        return (
            f"the plan gives stage {self.stage} another output {self.how} than stage {self.stage + 1} takes"
        )


_ALONE = ("stages", "microbatches", "metadata")


def num_surplus(misplan: Misplan | None, *, num_ranks: int) -> int:
    """How many stages a case's model has beyond those of the right plan."""
    match None if misplan is None else misplan.how:
        case "remainder":
            return 1
        case "single" | "stages":
            return num_ranks
    return 0


def impossible_misplan(one: Misplan, *, num_ranks: int, num_stages: int) -> Iterator[str]:
    """Yield why a plan cannot be wrong like that, in words."""
    name = "world.misplan"
    if one.rank is not None and not 0 <= one.rank < num_ranks:
        yield f"{name}.rank {one.rank} is outside 0…{num_ranks - 1}"
    if (one.rank is None) == (one.how in _ALONE):
        whose = "one rank's plan" if one.how in _ALONE else "every rank's plan"
        if one.how != "schedule":
            yield f"{name}.how {one.how!r} is about {whose}, not about rank {one.rank}"
    if one.how in (*_ALONE, "remainder") and num_ranks < 2:
        yield f"{name}.how {one.how!r} needs two ranks"
    if one.kind is MistakeKind.NEIGHBOURS and not 0 <= one.stage < num_stages - 1:
        yield f"{name}.stage {one.stage} has no stage after it"
    if (one.how == "microbatches") != (one.number > 0):
        yield f"{name}.number {one.number} is the number of microbatches that one rank is told, if that is the mistake"
