"""Weights tied across stages of one rank, of different ranks, or across all stages."""

from __future__ import annotations

import itertools

from msgspec import structs

from pipeconform.adapter import placement_of
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, Placement, ScheduleClaim

__all__ = ["TIED_STAGES", "can_tie", "can_tie_ranks", "tied", "ties_of"]


def can_tie(claim: ScheduleClaim, own: Capabilities) -> bool:
    """Whether two stages of one rank, or of different ranks, can be tied."""
    if claim.placement is Placement.MIRROR:
        return False  # there, a stage has several owners, which add up its gradients themselves
    several = any(v > 1 for v in claim.stages_per_rank) or claim.placement is Placement.SINGLE_PROCESS
    one_rank = Feature.SHARED_ACROSS_STAGES in own.features and several
    return one_rank or can_tie_ranks(claim, own)


def can_tie_ranks(claim: ScheduleClaim, own: Capabilities) -> bool:
    """Whether stages of different ranks can be tied; under a V both ends are on one rank."""
    at_ends = own.tied_stages == "ends" and claim.placement is Placement.V
    return Feature.SHARED_ACROSS_RANKS in own.features and claim.max_ranks > 1 and not at_ends


def ties_of(d: Drawing, num_stages: int) -> list[tuple[int, int]]:
    """The pairs of stages that may be tied, wherever they are."""
    pairs = itertools.combinations(range(num_stages), 2)
    return [pair for pair in pairs if d.capabilities.ties(pair, num_stages=num_stages)]


def tied(d: Drawing, model: Model) -> Model:
    """Tie two stages of one rank, two of different ranks, or all, as far as claimed."""
    num = len(model.stages)
    owners = placement_of(d.claim.placement, num_ranks=d.num_ranks, num_stages=num)
    pairs = ties_of(d, num)
    found: list[tuple[int, ...]] = []
    if Feature.SHARED_ACROSS_STAGES in d.features:
        found += [(a, b) for a, b in pairs if owners[a] == owners[b]]
    if Feature.SHARED_ACROSS_RANKS in d.features:
        found += [(a, b) for a, b in pairs if owners[a] != owners[b]]
    if len(pairs) > 1 and {Feature.SHARED_ACROSS_STAGES, Feature.SHARED_ACROSS_RANKS} <= d.features:
        found.append(tuple(range(num)))
    return structs.replace(model, tied=d.pick(found) if found else ())


TIED_STAGES = Subject(
    focus=Focus.TIED_STAGES,
    squares=True,
    claimed=can_tie,
    found=lambda case: bool(case.model.tied),
    least_stages=2,
    contents=on_model(tied),
    without=lambda case: changed_model(case, tied=()),
    control="without the tied weights",
)
