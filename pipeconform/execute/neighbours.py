"""Which boundaries of a case a rank shares with which others, and in which order its schedule crosses them."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.adapter import Plan, ScheduleClaim
from pipeconform.case.case import Case, Eval, Train
from pipeconform.errors import PipeconformError
from pipeconform.observe.traffic.due import Neighbours
from pipeconform.schedule import Kind, generate

__all__ = ["neighbours_of"]


def neighbours_of(case: Case, plan: Plan, claim: ScheduleClaim) -> Neighbours:
    """What this rank can expect of its neighbours, by the plan and the schedule's claim."""
    ranks = plan.ranks.pipeline_ranks
    model = case.model
    alone = model.container == "tensor" and not model.passages
    return Neighbours(
        rank=plan.ranks.rank,
        owners=tuple(frozenset(ranks[position] for position in owners) for owners in plan.placement),
        dtype=model.dtype if alone else "",
        trains=lambda step: step < len(case.program) and isinstance(case.program[step], Train),
        order=lambda step, stage, back: _order(case, plan, claim, step, stage, back=back),
    )


def _order(
    case: Case, plan: Plan, claim: ScheduleClaim, step: int, stage: int, *, back: bool
) -> Sequence[int]:
    run, position = case.program[step], plan.ranks.pipeline_rank
    if claim.family is None or position is None or not isinstance(run, Train | Eval):
        return ()
    try:
        table = generate(
            claim.family,
            num_ranks=case.num_ranks,
            stages_per_rank=case.stages_per_rank,
            num_microbatches=run.num_microbatches,
        )
    except PipeconformError:  # it has no table of this size
        return ()
    if table.num_chains > 1:  # its stages are numbered differently from the case's
        return ()
    kinds = (Kind.B, Kind.I) if back else (Kind.F,)
    leaves = (leaf for action in table[position] for leaf in action.leaves)
    return [
        leaf.microbatch
        for leaf in leaves
        if leaf.stage == stage and leaf.kind in kinds and leaf.microbatch is not None
    ]
