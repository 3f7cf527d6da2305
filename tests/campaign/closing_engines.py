"""torch's pipelining whose connections outlive an error: another process holds them for a while."""

from __future__ import annotations

import os
import time

from pipeconform.adapters.torch_pipelining import TorchPipelining


class ClosesLate(TorchPipelining):
    """When a rank has raised, its peers are told by the closing connection, a fifth of a second later."""

    seconds = 0.2

    def build(self, plan):
        return Holding(super().build(plan), self.seconds)


class NeverCloses(ClosesLate):
    """They are not told while they are observed."""

    seconds = 30.0


class Holding:
    def __init__(self, inner, seconds):
        self.inner, self.seconds = inner, seconds

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def run(self, mode, batch):
        try:
            return self.inner.run(mode, batch)
        except RuntimeError:
            if os.fork() == 0:  # it has the same sockets, which are closed when it ends, too
                time.sleep(self.seconds)
                os._exit(0)
            raise
