"""Faults of exceptions: other ranks do not learn of them, or those of communication hooks are lost."""

from __future__ import annotations

import contextlib

from ..runtime import Step
from .fault import breaks


@breaks("ERR-10", tells="communication hook.*promised: StageError")
class HookUnplaced(Step):
    """Exceptions of a communication hook are passed on without saying where they were raised."""

    def _average(self, s: int) -> None:
        self.replicas[s].reduce(failed=self._failure is not None)


@breaks("ERR-10", tells="communication hook.*no rank raised; promised: StageError")
class HookSwallowed(Step):
    """A communication hook that raises is ignored, and every replica keeps its own gradients."""

    def _average(self, s: int) -> None:
        with contextlib.suppress(Exception):
            self.replicas[s].reduce(failed=self._failure is not None)


@breaks(
    "ERR-14",
    status="hung",
    tells=r"rank \d waits forever, when in step \d .* raises.* and rank \d raised",
    also=("ERR-10",),
)
class NoticeOmitted(Step):
    """A rank that fails raises at once and sends no notice."""

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        super()._fail(s, k, what, error)
        assert self._failure is not None
        raise self._failure
