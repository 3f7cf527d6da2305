"""Plain values as answers of tasks, which are bytes: written in the rank, read in the test."""

import ast
import functools
from collections.abc import Callable

import msgspec

from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.verdict import Returned, VerdictVector

_MARK = b"plain: "


def plain(task: Callable[[RankContext, bytes], object]) -> Callable[[RankContext, bytes], bytes]:
    """Let a task return any value that is a literal of Python."""

    @functools.wraps(task)
    def answered(context: RankContext, payload: bytes) -> bytes:
        return _MARK + repr(task(context, payload)).encode()

    return answered


def read(vector: VerdictVector) -> VerdictVector:
    """The verdicts with the values that the tasks returned."""
    return VerdictVector(tuple(_read(one) if isinstance(one, Returned) else one for one in vector))


def _read(one: Returned) -> Returned:
    if not one.value.startswith(_MARK):
        return one
    return msgspec.structs.replace(one, value=ast.literal_eval(one.value.removeprefix(_MARK).decode()))
