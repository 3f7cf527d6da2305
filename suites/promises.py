"""Promises on which many requirements rest."""

from __future__ import annotations

from pipeconform.spec.catalogue import Promise

__all__ = ["ASYNCHRONOUS", "DECLARED", "FULL_MODEL", "NO_PROMISE", "ORDINARY"]

FULL_MODEL = Promise(
    "GPipe (arXiv:1811.06965): a pipeline computes what the model computes",
    "https://arxiv.org/abs/1811.06965",
)
"""Of every pipeline."""

DECLARED = Promise("pipeconform.adapter.ErrorContract: the error that the implementation declares")
"""The implementation's own word."""

ORDINARY = Promise(
    "torch.nn.parallel.DistributedDataParallel documentation, note: a wrapped model may be treated as an ordinary one",
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
)
"""Of every wrapper."""

ASYNCHRONOUS = Promise(
    "torch.distributed documentation, asynchronous collective functions: a result is there once its work has completed",
    "https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations",
)
"""Of whoever communicates while it computes."""

NO_PROMISE = Promise("no promise known")
"""Of a requirement that stands by its reason alone."""
