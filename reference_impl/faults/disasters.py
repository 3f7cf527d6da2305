"""Faults that end a rank: an exception, a sudden end, a sleep."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from pipeconform.schedule import Action

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..runtime import Step, Yield
from .fault import breaks


class _RaisingStep(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        if self.position == self.placement[-1]:
            raise RuntimeError("the last rank gives up")
        return super().run(actions)


class _Raises(ReferencePipeline):
    step_type = _RaisingStep


@breaks("FWD-1", status="error")
class Raises(ReferenceAdapter):
    """The last rank raises in the middle of a step."""

    pipeline = _Raises


class _ExitingStep(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        if self.position == self.placement[-1]:
            os._exit(13)
        return super().run(actions)


class _Exits(ReferencePipeline):
    step_type = _ExitingStep


@breaks("FWD-1", status="crashed")
class Exits(ReferenceAdapter):
    """The last rank leaves by os._exit.

    The last rank's process ends without a word.
    """

    pipeline = _Exits


class _SleepingStep(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        if self.position == self.placement[0]:
            threading.Event().wait()
        return super().run(actions)


class _Sleeps(ReferencePipeline):
    step_type = _SleepingStep


@breaks("FWD-1", status="hung")
class Sleeps(ReferenceAdapter):
    """The first rank never comes back.

    The first rank waits for something that never happens.
    """

    pipeline = _Sleeps
