"""What all ranks of a world say together."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pipeconform.ranks import examiner
from pipeconform.ranks.recording.recorder import our_own

__all__ = ["on_every_rank"]


def on_every_rank(mine: bool, *, device: torch.device | str, words: str) -> bool:
    """Whether something is true on every rank, when all of them have come here; `words` say what this one does then."""
    if not dist.is_initialized():
        return mine
    votes = torch.tensor(int(mine), device=device)
    try:
        with our_own(), examiner.waiting_for_others(words):
            dist.all_reduce(votes, dist.ReduceOp.MIN)  # in the world's own group
    except RuntimeError:
        return False  # a rank has died
    return bool(votes)
