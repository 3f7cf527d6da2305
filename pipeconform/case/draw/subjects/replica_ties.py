"""Weights tied across the stages of replicas."""

from __future__ import annotations

from msgspec import structs

from pipeconform.adapter import placement_of
from pipeconform.case.case import Optimize, Zero
from pipeconform.case.draw.changes import changed_model, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import in_ddp, replicated, with_one_pipeline
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.tied_stages import can_tie_ranks, ties_of
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim


def _tied(d: Drawing, draft: Draft) -> Draft:
    """Tie two stages of different ranks; on one rank, two wrappers would hold the shared parameter."""
    num = d.num_stages
    owners = placement_of(d.claim.placement, num_ranks=d.num_ranks, num_stages=num)
    pairs = [(a, b) for a, b in ties_of(d, num) if owners[a] != owners[b]]
    model = structs.replace(draft.model, tied=d.pick(pairs))
    steps = (draft.train, Optimize(), Zero(set_to_none=True)) * d.pick([2, 3, 4])
    return replaced(draft, model=model, program=steps[:-1])


def _is_claimed(claim: ScheduleClaim, own: Capabilities) -> bool:
    return own.data_parallel is not None and "ddp" in own.data_parallel.wrappers and can_tie_ranks(claim, own)


REPLICA_TIES = Subject(
    focus=Focus.REPLICA_TIES,
    squares=True,
    form="replicas",
    needs=frozenset({Feature.SHARED_ACROSS_RANKS, Feature.OPTIMIZER}),
    claimed=_is_claimed,
    found=lambda case: bool(case.model.tied),
    rarity=4,
    least_ranks=2,
    world=replicated(in_ddp),
    program=_tied,
    without=lambda case: changed_model(case, tied=()),
    control="without the tied weights",
    further=(("with one replica", with_one_pipeline),),
)
