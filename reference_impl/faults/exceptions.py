"""Faults of exceptions: who is not told, and those of communication hooks."""

from __future__ import annotations

import contextlib

from ..runtime import Step
from .fault import breaks


@breaks("ERR-10", tells="communication hook.*promised: StageError")
class HookUnplaced(Step):
    """Exceptions of a communication hook pass without their place.

    What a communication hook raises leaves the step as it is.
    """

    def _average(self, s: int) -> None:
        self.replicas[s].reduce(failed=self._failure is not None)


@breaks("ERR-10", tells="communication hook.*no rank raised; promised: StageError")
class HookSwallowed(Step):
    """A communication hook that raises is forgotten.

    A communication hook that raises leaves the replicas with gradients of their own, and no word.

    What a communication hook raises is forgotten.
    """

    def _average(self, s: int) -> None:
        with contextlib.suppress(Exception):
            self.replicas[s].reduce(failed=self._failure is not None)


@breaks(
    "ERR-14", status="hung", tells=r"rank \d waits forever, when in step \d .* raises.* and rank \d raised"
)
class NoticeOmitted(Step):
    """A rank that fails sends no notice.

    A rank that fails leaves the step at once, and sends no notice.

    Raises where it stands; what was to be sent is not.
    """

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        super()._fail(s, k, what, error)
        assert self._failure is not None
        raise self._failure
