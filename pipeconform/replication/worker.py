"""The tasks of a wrapper's rank processes and of the oracle's, over MessagePack."""

from __future__ import annotations

import functools

import msgspec

from pipeconform.execute.implementation import load
from pipeconform.ranks.rank import RankContext
from pipeconform.replication.job import Job
from pipeconform.replication.observation import Question
from pipeconform.replication.oracle import expected_of
from pipeconform.replication.rank import shown_by
from pipeconform.wrapper import WrapperAdapter

__all__ = ["answer", "describe", "execute"]


@functools.lru_cache(maxsize=8)
def _adapter(reference: str) -> WrapperAdapter:
    adapter: WrapperAdapter = load(reference, methods=("describe", "wrap"))
    return adapter


def describe(context: RankContext, payload: bytes) -> bytes:
    """Return the implementation's description as MessagePack; `payload` is its reference."""
    return msgspec.msgpack.encode(_adapter(payload.decode()).describe())


def execute(context: RankContext, payload: bytes) -> bytes:
    """Run one `Job` and return what this rank shows, both as MessagePack; exceptions are data, too."""
    job = msgspec.msgpack.decode(payload, type=Job)
    adapter = _adapter(job.implementation)
    return msgspec.msgpack.encode(shown_by(adapter, job.case, rank=context.rank, checkpoint=job.checkpoint))


def answer(context: RankContext, payload: bytes) -> bytes:
    """Answer a `Question` with `Expected`, both as MessagePack."""
    return msgspec.msgpack.encode(expected_of(msgspec.msgpack.decode(payload, type=Question)))
