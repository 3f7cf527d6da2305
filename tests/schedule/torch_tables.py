"""The tables of torch's schedules, made without processes."""

from __future__ import annotations

from typing import Any
from unittest import mock

from pipeconform.schedule import Table, from_csv


def schedule(name: str, *, p: int, v: int, m: int, **options: Any) -> Any:
    """Rank 0's schedule object, on stages that know their numbers only."""
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

    style = "v" if name in {"ZBVZeroBubble", "DualPipeV"} else "loop"
    stages = [
        mock.MagicMock(stage_index=k, num_stages=p * v, group_size=p, group_rank=0, submod=None)
        for k in generate_rank_to_stage_mapping(p, p * v, style=style)[0]
    ]
    return schedules.get_schedule_class(name)(stages, m, loss_fn=lambda output, target: None, **options)


def waits_for_sends() -> bool:
    """Whether this torch's tables say where sends are waited for: since 2.15."""
    from torch.distributed.pipelining import schedules

    return hasattr(schedules, "WAIT_SEND_F")


def csv_of(actions: Any, p: int) -> str:
    """Torch's lists of actions as torch writes them to a file."""
    return "".join(",".join("" if a is None else str(a) for a in actions[rank]) + "\r\n" for rank in range(p))


def declared(name: str, *, p: int, v: int, m: int) -> Table:
    """The order that a schedule declares, computations only."""
    from torch.distributed.pipelining import schedules

    if name not in {"GPipe", "1F1B"}:
        return from_csv(csv_of(schedule(name, p=p, v=v, m=m).pipeline_order, p), num_microbatches=m)
    single = schedules.get_schedule_class(name)
    bare = single.__new__(single)
    bare._num_stages, bare._n_microbatches = p, m
    computed = {
        rank: [action for action in actions if action and action.is_compute_op]
        for rank, actions in bare._get_pipeline_order().items()
    }
    return from_csv(csv_of(computed, p), num_microbatches=m)


def lowered(name: str, *, p: int, v: int, m: int, **options: Any) -> Table:
    """The table with communication that torch's runtime carries out."""
    return from_csv(csv_of(schedule(name, p=p, v=v, m=m, **options).pipeline_order_with_comms, p))
