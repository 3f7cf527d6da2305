"""Which cases may stand for a failing one: those that could have been drawn, or a shorter part of such.

A candidate is never one that the implementation does not claim, and never one of whose like the judgements do not
speak: what the strategies see to while they draw is asked here of the finished case.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.adapter import Feature, ScheduleClaim, placement_of
from pipeconform.case import blocks
from pipeconform.case.by_hand import has_neighbour
from pipeconform.case.case import Case, Train
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.mistakes import Mistake

__all__ = ["MAPS", "ORDINARY", "Scope"]

MAPS = (blocks.Linear, blocks.Mlp, blocks.Attention)
"""What makes a stage's output another value than its input; every drawn stage has one."""
ORDINARY = (*MAPS, blocks.Norm)
"""What no requirement is about in particular."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The cases of one focus under one schedule, inside limits."""

    limits: Limits
    claim: ScheduleClaim
    focus: Focus

    def holds(self, case: Case, *, origin: Case) -> bool:
        """Whether `case`, a simpler one than `origin`, may be executed and judged in its place."""
        return (
            self._is_about_no_more(case, origin)
            and self._has_claimed_sizes(case)
            and self._has_a_claimed_model(case)
            and _computes(case)
            and _shows(case)
            and self._is_laid_out(case)
        )

    def _is_about_no_more(self, case: Case, origin: Case) -> bool:
        capabilities, own = self.limits.capabilities, traits(origin)
        return all(one in own or is_claimed(one, self.claim, capabilities) for one in traits(case))

    def _has_claimed_sizes(self, case: Case) -> bool:
        p, v, subject = case.num_ranks, case.stages_per_rank, SUBJECTS[self.focus]
        if (case.world.size if case.world.is_parallel else p) < self.limits.min_ranks:
            return False
        if p < subject.least_ranks or v < subject.least_stages_per_rank or p * v < subject.least_stages:
            return False
        if case.world.num_replicas < subject.least_replicas:
            return False
        if any(run.batch_size // run.num_microbatches < min(subject.rows) for run in case.runs):
            return False
        if subject.sizes is not None:
            known = subject.sizes(self.limits, self.claim)
            if all((p, v, run.num_microbatches) in known for run in case.runs):
                return True
        return all(
            self.claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=run.num_microbatches)
            for run in case.runs
        )

    def _has_a_claimed_model(self, case: Case) -> bool:
        model, own = case.model, self.limits.capabilities
        boundary = own.boundary
        return (
            model.container in boundary.containers
            and model.dtype in boundary.dtypes
            and boundary.min_ndim <= (3 if model.sequence else 2)
            and case.loss.reduction in own.reductions
        )

    def _is_laid_out(self, case: Case) -> bool:
        """What depends on which ranks own which stages."""
        model, features = case.model, self.limits.capabilities.features
        hands = [step.by_hand for step in case.trains if step.by_hand is not None]
        if not model.tied and not any(hand.mistake for hand in hands):
            return True
        owners = placement_of(
            self.claim.placement, num_ranks=case.num_ranks, num_stages=case.num_ranks * case.stages_per_rank
        )
        placed = [min(ranks) for ranks in owners]
        if not all(has_neighbour(hand.mistake, stage=hand.stage, placed=placed) for hand in hands):
            return False
        ranks = [owners[s] for s in model.tied]
        across, inside = len(set(ranks)) > 1, len(set(ranks)) < len(ranks)
        if case.world.replicas is not None and inside:
            return False  # two wrappers of one rank would know the shared parameter
        return (not across or Feature.SHARED_ACROSS_RANKS in features) and (
            not inside or Feature.SHARED_ACROSS_STAGES in features
        )


def _computes(case: Case) -> bool:
    """Whether every stage changes what it is given, and something is left to train."""
    model = case.model
    if not all(any(isinstance(block, MAPS) for block in stage.blocks) for stage in model.stages):
        return False
    if case.has(blocks.Norm) and model.width <= 2:
        return False  # one or two values normalised are the same for every sample
    return any(not stage.frozen and any(not block.frozen for block in stage.blocks) for stage in model.stages)


def _shows(case: Case) -> bool:
    """Whether what the case is about can be seen in it, and nothing else is due."""
    model, world = case.model, case.world
    last = len(model.stages) - 1
    if case.has(blocks.Inplace, blocks.Layout) and not model.view_outputs:
        return False
    for s, stage in enumerate(model.stages):
        layouts = [b for b, block in enumerate(stage.blocks) if isinstance(block, blocks.Layout)]
        # kernels round other strides otherwise: nothing computed may come after the last boundary
        if layouts and (s, layouts) != (last - 1, [len(stage.blocks) - 1]):
            return False
    for one in model.passages:
        if one.kind == "learned" and one.source < 1:
            return False
        if one.kind == "stream" and one.users and one.last < one.source + 2:
            return False
    replicas = world.replicas
    unused = case.has(blocks.Unused, blocks.Branch)
    if unused and replicas is not None and replicas.wrapper == "ddp" and not replicas.find_unused:
        return False
    if model.split is not None and model.split.longer and len(case.runs) < 2:
        return False
    if world.misplan is not None and world.misplan.number:
        told = world.misplan.number
        if any(run.batch_size % told or run.batch_size % run.num_microbatches for run in case.runs):
            return False
        if any(run.num_microbatches == told for run in case.runs):
            return False
    # which forward is whose microbatch is known once the dry runs of the first step are over
    first = case.runs[0]
    if isinstance(first, Train) and first.mistake is not None and first.mistake.microbatch is not None:
        return False
    return all(
        _is_one(step.mistake, case, num_microbatches=step.num_microbatches)
        for step in case.trains
        if step.mistake is not None
    )


def _is_one(mistake: Mistake, case: Case, *, num_microbatches: int) -> bool:
    """Whether a mistake is one in this case: other sizes or dtypes may make it the right thing to do."""
    if mistake.how == "scarce" and num_microbatches < 2:
        return False
    if mistake.how == "up" and case.model.dtype == "float64":
        return False
    return mistake.where != "output" or mistake.stage < len(case.model.stages) - 1
