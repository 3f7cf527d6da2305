"""Promises on which requirements rest, and functions that make them."""

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
    """A promise made on a page of torch's documentation."""
    return Promise(text, f"https://docs.pytorch.org/docs/stable/{page}")


def in_source(text: str, file: str) -> Promise:
    """A promise made in a file of torch, in a docstring, a comment or a message."""
    return Promise(text, f"https://github.com/pytorch/pytorch/blob/v2.13.0/torch/{file}")


def paper(text: str) -> Promise:
    """A promise made in a paper, whose arXiv number is in the text: ``GPipe (arXiv:1811.06965)``."""
    (number,) = re.findall(r"arXiv:(\d{4}\.\d{4,5})", text)
    return Promise(text, f"https://arxiv.org/abs/{number}")


FULL_MODEL = paper("GPipe (arXiv:1811.06965): a pipeline computes what the model computes")
"""What every pipeline promises."""

DECLARED = Promise("pipeconform.adapter.ErrorContract: the error that the implementation declares")
"""What the implementation itself promises."""

ORDINARY = documented(
    "torch.nn.parallel.DistributedDataParallel documentation, note: a wrapped model may be treated as an ordinary one",
    "generated/torch.nn.parallel.DistributedDataParallel.html",
)
"""What every wrapper promises."""

ASYNCHRONOUS = documented(
    "torch.distributed documentation, asynchronous collective functions: a result is there once its work has completed",
    "distributed.html#synchronous-and-asynchronous-collective-operations",
)
"""What communication that runs beside the computation promises."""

NO_PROMISE = Promise("no promise known")
"""For a requirement that has a reason but no promise on which it could rest."""
