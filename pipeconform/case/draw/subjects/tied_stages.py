"""Weights tied across stages of one rank, of different ranks, or across all stages."""

from __future__ import annotations

from msgspec import structs

from pipeconform.adapter import placement_of
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, Placement, ScheduleClaim


def _is_claimed(claim: ScheduleClaim, own: Capabilities) -> bool:
    """Whether two stages of one rank, or of different ranks, can be tied."""
    if claim.placement is Placement.MIRROR:
        return False  # there, a stage has several owners, which add up its gradients themselves
    several = any(v > 1 for v in claim.stages_per_rank) or claim.placement is Placement.SINGLE_PROCESS
    one_rank = Feature.SHARED_ACROSS_STAGES in own.features and several
    return one_rank or (Feature.SHARED_ACROSS_RANKS in own.features and claim.max_ranks > 1)


def _tied(d: Drawing, model: Model) -> Model:
    """Tie two stages of one rank, two of different ranks, or all, as far as claimed."""
    num = len(model.stages)
    owners = placement_of(d.claim.placement, num_ranks=d.num_ranks, num_stages=num)
    pairs = [(a, b) for a in range(num) for b in range(a + 1, num)]
    found: list[tuple[int, ...]] = []
    if Feature.SHARED_ACROSS_STAGES in d.features:
        found += [(a, b) for a, b in pairs if owners[a] == owners[b]]
    if Feature.SHARED_ACROSS_RANKS in d.features:
        found += [(a, b) for a, b in pairs if owners[a] != owners[b]]
    if {Feature.SHARED_ACROSS_STAGES, Feature.SHARED_ACROSS_RANKS} <= d.features and num > 2:
        found.append(tuple(range(num)))
    return structs.replace(model, tied=d.pick(found) if found else ())


TIED_STAGES = Subject(
    focus=Focus.TIED_STAGES,
    squares=True,
    claimed=_is_claimed,
    found=lambda case: bool(case.model.tied),
    least_stages=2,
    contents=on_model(_tied),
    without=lambda case: changed_model(case, tied=()),
    control="without the tied weights",
)
