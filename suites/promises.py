"""Promises on which many requirements rest."""

from __future__ import annotations

import re

from pipeconform.spec.catalogue import Promise

__all__ = [
    "ASYNCHRONOUS",
    "DECLARED",
    "FULL_MODEL",
    "NO_PROMISE",
    "ORDINARY",
    "documented",
    "in_source",
    "paper",
]


def documented(text: str, page: str) -> Promise:
    """What a page of torch's documentation says."""
    return Promise(text, f"https://docs.pytorch.org/docs/stable/{page}")


def in_source(text: str, file: str) -> Promise:
    """What a file of torch says, in a docstring, a comment or a message."""
    return Promise(text, f"https://github.com/pytorch/pytorch/blob/v2.13.0/torch/{file}")


def paper(text: str) -> Promise:
    """What a publication says, whose number is in the text: ``GPipe (arXiv:1811.06965)``."""
    (number,) = re.findall(r"arXiv:(\d{4}\.\d{4,5})", text)
    return Promise(text, f"https://arxiv.org/abs/{number}")


FULL_MODEL = paper("GPipe (arXiv:1811.06965): a pipeline computes what the model computes")
"""What every pipeline promises."""

DECLARED = Promise("pipeconform.adapter.ErrorContract: the error that the implementation declares")
"""What the implementation promises itself."""

ORDINARY = documented(
    "torch.nn.parallel.DistributedDataParallel documentation, note: a wrapped model may be treated as an ordinary one",
    "generated/torch.nn.parallel.DistributedDataParallel.html",
)
"""What every wrapper promises."""

ASYNCHRONOUS = documented(
    "torch.distributed documentation, asynchronous collective functions: a result is there once its work has completed",
    "distributed.html#synchronous-and-asynchronous-collective-operations",
)
"""What communication promises that goes on beside the computation."""

NO_PROMISE = Promise("no promise known")
"""For a requirement that has a reason, and no promise that it could rest on."""
