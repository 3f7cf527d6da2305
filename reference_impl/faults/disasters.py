"""Faults that end a rank: an exception, a sudden end, a sleep."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from pipeconform.schedule import Action

from ..runtime import Step, Yield
from .fault import breaks


@breaks("FWD-1", status="error")
class Raises(Step):
    """The last rank raises in the middle of a step."""

    def run(self, actions: Sequence[Action]) -> Yield:
        if self.position == self.placement[-1]:
            raise RuntimeError("the last rank gives up")
        return super().run(actions)


@breaks("FWD-1", status="crashed")
class Exits(Step):
    """The last rank's process ends silently, by os._exit."""

    def run(self, actions: Sequence[Action]) -> Yield:
        if self.position == self.placement[-1]:
            os._exit(13)
        return super().run(actions)


@breaks("FWD-1", status="hung")
class Sleeps(Step):
    """The first rank waits for something that never happens."""

    def run(self, actions: Sequence[Action]) -> Yield:
        if self.position == self.placement[0]:
            threading.Event().wait()
        return super().run(actions)
