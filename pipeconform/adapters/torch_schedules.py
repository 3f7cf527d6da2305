"""What the schedules of torch.distributed.pipelining take, for its adapter and for those of engines that run them."""

from __future__ import annotations

from dataclasses import replace

from pipeconform.adapter import MicrobatchRule, Placement, ScheduleClaim

__all__ = ["SCHEDULES", "driven"]

_ANY = (1, 2, 3, 4)
SCHEDULES: tuple[ScheduleClaim, ...] = (
    ScheduleClaim(name="ForwardOnly", trains=False, family="forward_only"),
    ScheduleClaim(name="GPipe", family="gpipe"),
    ScheduleClaim(name="1F1B", min_microbatches_per_stage=1, family="one_f_one_b"),
    ScheduleClaim(
        name="Interleaved1F1B",
        stages_per_rank=_ANY,
        microbatches=MicrobatchRule.WHOLE_ROUNDS,
        family="interleaved_one_f_one_b",
    ),
    ScheduleClaim(
        name="LoopedBFS",
        stages_per_rank=_ANY,
        family="looped_bfs",
    ),
    ScheduleClaim(
        name="InterleavedZeroBubble",
        stages_per_rank=_ANY,
        microbatches=MicrobatchRule.WHOLE_ROUNDS,
        split_backward=True,
        family="interleaved_zero_bubble",
    ),
    ScheduleClaim(
        name="ZBVZeroBubble",
        placement=Placement.V,
        stages_per_rank=(2,),
        split_backward=True,
        family="zb_v",
    ),
    ScheduleClaim(
        name="DualPipeV",
        placement=Placement.V,
        stages_per_rank=(2,),
        min_microbatches_per_stage=1,
        split_backward=True,
        family="dualpipe_v",
    ),
)


def driven(*names: str) -> tuple[ScheduleClaim, ...]:
    """The claims of an engine that runs these schedules: on several ranks, and with several stages on each if any.

    Raises:
        KeyError: torch has no schedule of a name.
    """
    known = {one.name: one for one in SCHEDULES}
    return tuple(
        replace(
            known[name],
            min_ranks=2,
            stages_per_rank=(2, 3) if known[name].stages_per_rank == _ANY else known[name].stages_per_rank,
        )
        for name in names
    )
