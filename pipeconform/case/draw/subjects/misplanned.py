"""Drawing plans that are wrong; shrinks toward a stage too many, the first rank and the first boundary."""

from __future__ import annotations

from msgspec import structs

from pipeconform.adapter import Feature
from pipeconform.case.case import Model, Stage, Train
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import some_m
from pipeconform.case.focus import Focus
from pipeconform.case.misplans import HowPlanned, Misplan, num_surplus

__all__ = ["misplanned"]


def misplanned(d: Drawing, train: Train, model: Model, *, num_ranks: int) -> tuple[Misplan, Train, Model]:
    """A mistake in the plan, a training step and a model that it can be made with."""
    p, stages = num_ranks, len(model.stages)
    if d.focus is Focus.NEIGHBOURS:
        hows: list[HowPlanned] = ["shape", "dtype"]
        return Misplan(how=d.pick(hows), stage=d.pick(range(stages - 1))), train, model
    others = [
        m for m in dict.fromkeys(some_m(d.claim, p, stages // p)) if m not in (1, train.num_microbatches)
    ]
    hows = ["remainder", "single"] if d.claim.stages_per_rank == (1,) else ["remainder"]
    hows += ["schedule", "stages"]
    hows += ["microbatches"] if others else []
    hows += ["metadata"] if Feature.DECLARED_BOUNDARIES in d.features else []
    how = d.pick(hows)
    rank: int | None = None
    if how not in ("remainder", "single"):
        rank = d.pick([*range(p), None] if how == "schedule" else range(p))
    one = Misplan(how=how, rank=rank, number=d.pick(others) if how == "microbatches" else 0)
    if one.number:
        # microbatches of one size under either plan
        train = structs.replace(train, batch_size=one.number * train.num_microbatches)
    surplus = tuple(_like(stage) for stage in model.stages[: num_surplus(one, num_ranks=p)])
    return one, train, structs.replace(model, stages=model.stages + surplus)


def _like(stage: Stage) -> Stage:
    return structs.replace(stage)
