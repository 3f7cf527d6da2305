"""Decides which cases may replace a failing one: cases that could have been drawn, or shorter parts of them.

The implementation must claim a candidate, and the judgements must apply to it. The strategies ensure this while they
draw; this module checks the finished case.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.adapter import Feature, ScheduleClaim, placement_of
from pipeconform.case import blocks
from pipeconform.case.by_hand import has_neighbour
from pipeconform.case.case import Case, Train
from pipeconform.case.draw.changes import accumulates
from pipeconform.case.draw.claimed import crosses_as_claimed, is_claimed
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.subjects.clipped import clips_as_claimed
from pipeconform.case.draw.traits import all_traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.freezing import is_trainable
from pipeconform.case.mistakes import Mistake, is_wrong_at_once

__all__ = ["MAPS", "ORDINARY", "Scope"]

_OF_NO_SUBJECT = (blocks.Linear, blocks.Mlp, blocks.Attention)
MAPS = (
    *_OF_NO_SUBJECT,
    blocks.Decoder,
    blocks.Gain,
    blocks.Bypass,
    blocks.Rescaled,
    blocks.Keeping,
    blocks.Counting,
)
"""Blocks that every stage has one of: they compute with its input, and have something to train."""
ORDINARY = (*_OF_NO_SUBJECT, blocks.Norm)
"""Blocks that no subject is about."""

_LEAST_OF_DECODERS = 2
"""The width below which RMSNorm gives the same for every sample, but for signs."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The cases of one focus under one schedule, within limits."""

    limits: Limits
    claim: ScheduleClaim
    focus: Focus

    def holds(self, case: Case, *, origin: Case) -> bool:
        """Whether `case`, which is simpler than `origin`, may be executed and judged in its place."""
        return (
            self._is_about_no_more(case, origin)
            and self._has_claimed_sizes(case)
            and self._has_a_claimed_model(case)
            and self._is_wrong_at_once(case)
            and _computes(case, origin)
            and _shows(case)
            and self._is_laid_out(case)
        )

    def _is_about_no_more(self, case: Case, origin: Case) -> bool:
        if accumulates(case) and not accumulates(origin):
            return False  # without what clears gradients, earlier ones would be part of what is compared
        capabilities, own = self.limits.capabilities, all_traits(origin)
        return all(one in own or is_claimed(one, self.claim, capabilities) for one in all_traits(case))

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
        model, own = case.model, self.limits.capabilities.under(self.claim)
        boundary = own.boundary
        return (
            model.container in boundary.containers
            and model.dtype in boundary.dtypes
            and boundary.min_ndim <= (3 if model.sequence else 2)
            and crosses_as_claimed(model, boundary)
            and clips_as_claimed(case, own)
            and case.loss.reduction in own.reductions
            and case.loss.kind in own.losses
        )

    def _is_wrong_at_once(self, case: Case) -> bool:
        """Whether a mistake that only a step before it makes one has such a step."""
        first, own = case.runs[0], self.limits.capabilities.under(self.claim)
        mistake = first.mistake if isinstance(first, Train) else None
        return mistake is None or is_wrong_at_once(mistake, containers=own.boundary.containers)

    def _is_laid_out(self, case: Case) -> bool:
        """Whether ties and mistakes by hand are possible with the ranks that own the stages."""
        model, features = case.model, self.limits.capabilities.under(self.claim).features
        hands = [step.by_hand for step in case.trains if step.by_hand is not None]
        if not model.tied and not any(hand.mistake for hand in hands):
            return True
        owners = placement_of(
            self.claim.placement, num_ranks=case.num_ranks, num_stages=case.num_ranks * case.stages_per_rank
        )
        placed = [min(ranks) for ranks in owners]
        if not all(has_neighbour(hand.mistake, stage=hand.stage, placed=placed) for hand in hands):
            return False
        if model.tied and not self.limits.capabilities.ties(model.tied, num_stages=len(model.stages)):
            return False
        ranks = [owners[s] for s in model.tied]
        across, inside = len(set(ranks)) > 1, len(set(ranks)) < len(ranks)
        if case.world.replicas is not None and inside:
            return False  # two wrappers on one rank would hold the shared parameter
        return (not across or Feature.SHARED_ACROSS_RANKS in features) and (
            not inside or Feature.SHARED_ACROSS_STAGES in features
        )


def _computes(case: Case, origin: Case) -> bool:
    """Whether every stage changes its input, and something is left to train.

    A last stage that hands on what it is given may still do so.
    """
    model = case.model
    hands_on = not (model.stages[-1].blocks or origin.model.stages[-1].blocks)
    changing = model.stages[:-1] if hands_on else model.stages
    if not all(any(isinstance(block, MAPS) for block in stage.blocks) for stage in changing):
        return False
    if case.has(blocks.Norm) and model.width <= 2:
        return False  # normalising one or two values gives the same for every sample
    if case.has(blocks.Decoder) and model.width < _LEAST_OF_DECODERS:
        return False
    if model.width % case.world.num_tensor_ranks and case.world.tensor is not None and case.world.tensor.maps:
        return False  # where a part has nothing of a map, DTensor itself cuts the gradient otherwise
    return any(map(is_trainable, model.stages))


def _shows(case: Case) -> bool:
    """Whether the subject of the case still shows in it, and no further error is expected."""
    model, world = case.model, case.world
    last = len(model.stages) - 1
    if case.has(blocks.Inplace, blocks.Layout, blocks.Activation) and not model.view_outputs:
        return False
    if any(isinstance(block, blocks.Activation) for stage in model.stages for block in stage.blocks[:-1]):
        return False
    for s, stage in enumerate(model.stages):
        layouts = [b for b, block in enumerate(stage.blocks) if isinstance(block, blocks.Layout)]
        # kernels round differently for other strides: only the last boundary may have them
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
    # the microbatch of a forward is known only after the dry runs of the first step
    first = case.runs[0]
    if isinstance(first, Train) and first.mistake is not None and first.mistake.microbatch is not None:
        return False
    return all(
        _is_one(step.mistake, case, num_microbatches=step.num_microbatches)
        for step in case.trains
        if step.mistake is not None
    )


def _is_one(mistake: Mistake, case: Case, *, num_microbatches: int) -> bool:
    """Whether a mistake is still wrong in this case: other sizes or dtypes may make it right."""
    if mistake.how == "scarce" and num_microbatches < 2:
        return False
    if mistake.how == "up" and case.model.dtype == "float64":
        return False
    return mistake.where != "output" or mistake.stage < len(case.model.stages) - 1
