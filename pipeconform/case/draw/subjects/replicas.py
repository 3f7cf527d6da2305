"""Replicas of the pipeline in DistributedDataParallel, and sharded ones."""

from __future__ import annotations

from typing import Any

from pipeconform.case.case import Optimize, Step, Zero
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import claim_of, in_ddp, replicas_of, replicated, with_one_pipeline
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def stepped(d: Drawing, draft: Draft) -> Draft:
    """Draw two or three steps, with or without optimizer steps between them."""
    train, zero = draft.train, Zero(set_to_none=True)
    plain: tuple[Step, ...] = (train, zero, train)
    if Feature.OPTIMIZER not in d.features:
        return replaced(draft, program=plain)
    optimized = (train, Optimize(), zero)
    return replaced(draft, program=d.pick([plain, (*optimized, train), (optimized * 3)[:-1]]))


def _sharded(d: Drawing) -> dict[str, Any]:
    return {"wrapper": "fully_shard", "nested": "nested" in claim_of(d).options and d.pick([False, True])}


REPLICAS = Subject(
    focus=Focus.REPLICAS,
    form="replicas",
    claimed=lambda claim, own: own.data_parallel is not None and "ddp" in own.data_parallel.wrappers,
    found=lambda case: replicas_of(case).wrapper == "ddp",
    rarity=0,
    several_microbatches=True,  # with one, nothing tells a sum per microbatch from a sum per step
    world=replicated(in_ddp),
    program=stepped,
    without=with_one_pipeline,
    control="with one replica",
)
SHARDED = Subject(
    focus=Focus.SHARDED,
    form="replicas",
    claimed=lambda claim, own: own.data_parallel is not None and "fully_shard" in own.data_parallel.wrappers,
    found=lambda case: replicas_of(case).wrapper == "fully_shard",
    rarity=0,
    several_microbatches=True,  # with one, nothing tells a sum per microbatch from a sum per step
    world=replicated(_sharded),
    program=stepped,
    without=with_one_pipeline,
    control="with one replica, not sharded",
)
