"""torch's pipelining whose rank keeps its process group when it has raised: its connections stay open as long."""

from __future__ import annotations

import threading

from pipeconform.adapters.torch_pipelining import TorchPipelining

KEPT: list[object] = []


class ClosesLate(TorchPipelining):
    """The closing connection tells the peers a fifth of a second later, in which no rank does anything."""

    seconds = 0.2

    def build(self, plan):
        return Keeping(super().build(plan), plan.ranks.pipeline_group, self.seconds)


class ClosesLater(ClosesLate):
    """It takes a second."""

    seconds = 1.0


class NeverCloses(ClosesLate):
    """Nothing tells the peers while they are observed."""

    seconds = 30.0


class Keeping:
    def __init__(self, inner, group, seconds):
        self.inner, self.group, self.seconds = inner, group, seconds

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def run(self, mode, batch):
        try:
            return self.inner.run(mode, batch)
        except Exception:
            KEPT.append(self.group)
            later = threading.Timer(self.seconds, KEPT.clear)
            later.daemon = True
            later.start()
            raise
