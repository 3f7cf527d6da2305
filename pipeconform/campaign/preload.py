"""The modules that a fork server imports before it starts ranks; this list itself imports nothing."""

from __future__ import annotations

__all__ = ["PRELOAD"]

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint.state_dict",
    "torch.export._trace",
    "pipeconform.execute.worker",
    "pipeconform.oracle.full_model",
    "pipeconform.wrappers.worker",
    "pipeconform.execute.ahead",
    "pipeconform.adapters.torch_pipelining",  # imports nothing but torch; other adapters import an engine
)
