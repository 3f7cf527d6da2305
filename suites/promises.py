"""Promises on which requirements rest, and functions that make them.

A promise is something that an implementation, its documentation or its type says, or that follows from being a pipeline
at all. A requirement that no promise covers is a SHOULD, never a MUST, and rests on the reason why it would be useful.
"""

from __future__ import annotations

import re

from pipeconform.schedule import families
from pipeconform.spec.catalogue import CONTRACT, Promise

__all__ = [
    "ASYNCHRONOUS",
    "DECLARED",
    "FULL_MODEL",
    "HANDLED",
    "MISMATCHES",
    "ORDINARY",
    "PLACEMENTS",
    "RAISED",
    "SCHEDULES",
    "TIME_OUT",
    "contract",
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


def contract(text: str) -> Promise:
    """A promise that an adapter makes by implementing the contract; the text begins with a name of it."""
    return Promise(f"{CONTRACT}{text}")


FULL_MODEL = paper("GPipe (arXiv:1811.06965): a pipeline computes what the model computes")
"""What every pipeline promises."""

DECLARED = contract("ErrorContract: the error that the implementation declares")
"""What the implementation itself promises."""

RAISED = Promise(
    "Extending Python, errors and exceptions: a function that fails sets an exception and returns",
    "https://docs.python.org/3/extending/extending.html#intermezzo-errors-and-exceptions",
)
"""What every extension of Python promises: an error is an exception, and does not end the process."""

HANDLED = Promise(
    "Python tutorial, errors and exceptions: an exception is not unconditionally fatal, a program may handle it",
    "https://docs.python.org/3/tutorial/errors.html#handling-exceptions",
)
"""What a program that catches an exception relies on. No engine promises to work after one."""

TIME_OUT = documented(
    "torch.distributed.init_process_group documentation, timeout: no operation of a group waits for longer",
    "distributed.html#torch.distributed.init_process_group",
)
"""The only end that torch promises to a rank that waits for another one."""

MISMATCHES = (
    in_source(
        "torch.distributed.pipelining, PipeliningMetadataError: raised on metadata mismatches between stages",
        "distributed/pipelining/_utils.py",
    ),
    Promise(
        "PipeliningShapeError, as it was called in earlier releases: a mismatch between configured and actual shapes",
        "https://github.com/pytorch/pytorch/blob/v2.6.0/torch/distributed/pipelining/_utils.py",
    ),
)
"""What torch's types promise about shapes and dtypes that are not those that were agreed on."""

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

_DUALPIPE = Promise("DualPipe repository (DualPipe, DualPipeV)", "https://github.com/deepseek-ai/DualPipe")


def _definitions() -> tuple[Promise, ...]:
    titles: dict[str, list[str]] = {}
    for family in families():
        for number in re.findall(r"\d{4}\.\d{4,5}", family.source):
            titles.setdefault(number, []).append(family.title)
    papers = (paper(f"arXiv:{number} ({', '.join(found)})") for number, found in titles.items())
    return (*papers, _DUALPIPE)


PLACEMENTS = (
    paper("Megatron-LM, interleaved schedule (arXiv:2104.04473): stages in a loop over the ranks"),
    paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 6: stages in a V"),
)
"""What defines where stages are."""

SCHEDULES = _definitions()
"""The publications that define the schedules, each with its order and its formulas."""
