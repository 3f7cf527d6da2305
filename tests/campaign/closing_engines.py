"""Engines whose rank has raised while another one waits for it, and who tells that one a moment later."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Mode
from pipeconform.adapters.torch_pipelining import TorchPipelining

KEPT: list[object] = []


class Torch(TorchPipelining):
    """As it is."""


class ClosesLate(TorchPipelining):
    """A rank that raises keeps its process group for a moment; closing its connections tells the peers.

    A rank that is still idle a fifth of a second after another one has ended counts as stuck: this is well before.
    """

    seconds = 0.05

    def build(self, plan):
        return Keeping(super().build(plan), plan.ranks, self.seconds)


class NeverCloses(ClosesLate):
    """Nothing tells the peers while they are observed."""

    seconds = 30.0


class TellsLate(ReferenceAdapter):
    """In a mistaken step rank 1 raises, and tells rank 0 after 1.6 s, less than the idle limit."""

    def build(self, plan):
        return Telling(super().build(plan), plan.ranks, 1.6)


class Around:
    def __init__(self, inner, ranks, seconds):
        self.inner, self.ranks, self.seconds = inner, ranks, seconds

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def later(self, function):
        """Call a function in a thread that does nothing before."""
        timer = threading.Timer(self.seconds, function)
        timer.daemon = True
        timer.start()


class Keeping(Around):
    def run(self, mode, batch):
        try:
            return self.inner.run(mode, batch)
        except Exception:
            KEPT.append(self.ranks.pipeline_group)
            self.later(KEPT.clear)
            raise


class Telling(Around):
    def run(self, mode, batch):
        if mode is not Mode.TRAIN or len(batch.target) > 1:
            return self.inner.run(mode, batch)
        word, group = torch.zeros(1), self.ranks.pipeline_group
        if self.ranks.pipeline_rank == 0:
            dist.recv(word, group=group, group_src=1)
        else:
            self.later(lambda: dist.send(word, group=group, group_dst=0))
        raise ValueError("a microbatch has no sample")
