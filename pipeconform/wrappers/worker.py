"""The tasks of the rank processes and of the oracle process for wrapper cases, over MessagePack."""

from __future__ import annotations

import functools

import msgspec
import torch

from pipeconform.execute.coverage import measured, packages_of
from pipeconform.execute.implementation import load
from pipeconform.ranks.rank import RankContext
from pipeconform.wrapper import WrapperAdapter
from pipeconform.wrappers.job import Job
from pipeconform.wrappers.observation import Question
from pipeconform.wrappers.oracle import expected_of
from pipeconform.wrappers.rank import shown_by

__all__ = ["answer", "execute"]


@functools.lru_cache(maxsize=8)
def _adapter(reference: str) -> WrapperAdapter:
    adapter: WrapperAdapter = load(reference)
    return adapter


def execute(context: RankContext, payload: bytes) -> bytes:
    """Run one `Job` and return what this rank shows, including any exception, both as MessagePack."""
    job = msgspec.msgpack.decode(payload, type=Job)
    adapter = _adapter(job.implementation)
    packages = packages_of(adapter, adapter.describe()) if job.coverage else ()
    with measured(packages, folder=job.coverage):
        shown = shown_by(
            adapter, job.case, rank=context.rank, device=context.device, checkpoint=job.checkpoint
        )
    return msgspec.msgpack.encode(shown)


def answer(context: RankContext, payload: bytes) -> bytes:
    """Answer a `Question` with `Expected`, both as MessagePack."""
    question = msgspec.msgpack.decode(payload, type=Question)
    return msgspec.msgpack.encode(expected_of(question, device_type=torch.device(context.device).type))
