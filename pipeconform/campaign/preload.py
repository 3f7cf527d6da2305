"""What a fork server imports before ranks execute cases of pipelines; light, so that it can be known early."""

from __future__ import annotations

__all__ = ["PRELOAD"]

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.pipelining",
    "torch.export._trace",
    "pipeconform.execute.worker",
    "pipeconform.judge.oracle",
)
