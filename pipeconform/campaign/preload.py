"""What a fork server imports before it starts ranks, whatever they execute; light, so that it can be known early."""

from __future__ import annotations

__all__ = ["PRELOAD"]

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.pipelining",
    "torch.export._trace",
    "pipeconform.execute.worker",
    "pipeconform.oracle.full_model",
    "pipeconform.wrappers.worker",
)
