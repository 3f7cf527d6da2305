"""Reading what ranks returned: by a schema, because the code that is judged runs in their processes.

A rank whose answer is none of what was asked for has failed; it does not end the run.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from pipeconform.errors import PipeconformError
from pipeconform.ranks.protocols import RankPools
from pipeconform.ranks.verdict import Raised, Returned, Verdict, VerdictVector

__all__ = ["UnreadableError", "ask_implementation", "decoded", "not_an_answer", "read_answers"]

T = TypeVar("T")

_TYPE = "pipeconform.NotAnAnswer"  # a verdict like any other: a broken contract would end the run


class UnreadableError(PipeconformError):
    """Bytes of a rank that are not what they should be."""


def decoded(body: bytes, kind: type[T]) -> T:
    """What MessagePack in `body` says.

    Raises:
        UnreadableError: it is no `kind`.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise UnreadableError(f"what is no {kind.__name__}: {error}") from error


def not_an_answer(what: str, *, after: float) -> Raised:
    """The verdict on a rank that sent something that no task answers."""
    return Raised(type=_TYPE, message=f"this rank's process sent {what}", after=after)


def read_answers(vector: VerdictVector, kind: type[Any]) -> VerdictVector:
    """The vector with what the ranks' answers say as values; an answer that is no `kind` counts as raised."""
    return VerdictVector(tuple(_read(verdict, kind) for verdict in vector))


def _read(verdict: Verdict, kind: type[Any]) -> Verdict:
    if not isinstance(verdict, Returned):
        return verdict
    try:
        return msgspec.structs.replace(verdict, value=decoded(verdict.value, kind))
    except UnreadableError as error:
        return not_an_answer(str(error), after=verdict.after)


def ask_implementation(
    pools: RankPools, task: str, reference: str, *, answer: type[Any], time_limit: float
) -> VerdictVector:
    """Run a task that imports the implementation called `reference`, alone in a process; its answer is an `answer`.

    The process is that of the oracle, because it is there; another takes its place, so that the oracle never computes
    where code under judgement has run.

    Raises:
        PoolError: no process can be had.
    """
    vector = pools.oracle.run(task, reference.encode(), time_limit=time_limit)
    pools.oracle.restart()
    return read_answers(vector, answer)
