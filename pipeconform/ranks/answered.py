"""Decodes what ranks return, by a schema, because the judged code runs in their processes.

A rank whose answer cannot be decoded has failed; the run goes on.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from pipeconform.errors import PipeconformError
from pipeconform.ranks.protocols import RankPools
from pipeconform.ranks.verdict import Raised, Returned, Verdict, VerdictVector

__all__ = ["UnreadableError", "ask_implementation", "decoded", "not_an_answer", "read_answers"]

T = TypeVar("T")

_TYPE = "pipeconform.NotAnAnswer"  # judged like other failures: as a ContractError it would end the run


class UnreadableError(PipeconformError):
    """A rank sent bytes that are not the expected answer."""


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode `body` from MessagePack.

    Raises:
        UnreadableError: it is no `kind`.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise UnreadableError(f"something other than {kind.__name__}: {error}") from error


def not_an_answer(what: str, *, after: float) -> Raised:
    """The verdict on a rank that sent something other than a task's answer."""
    return Raised(type=_TYPE, message=f"this rank's process sent {what}", after=after)


def read_answers(vector: VerdictVector, kind: type[Any]) -> VerdictVector:
    """The vector with decoded answers as values; an answer that is no `kind` counts as raised."""
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
    """Run a task that imports the implementation called `reference`, alone in a process; decode its answer.

    The task runs in the oracle's process, which exists already; a new process then replaces it, so that the oracle
    never computes where judged code has run.

    Raises:
        PoolError: no process could be started.
    """
    vector = pools.oracle.run(task, reference.encode(), time_limit=time_limit)
    pools.oracle.restart()
    return read_answers(vector, answer)
