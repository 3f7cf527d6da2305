"""Faults of engines that try out a stage, or the loss function, before the first step."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode

from ..adapter import ReferencePipeline
from ..runtime import Work
from .fault import breaks


class _Trying(ReferencePipeline):
    """Tries something out once, without a gradient and without a trace in modules and random numbers."""

    tried = False

    def try_out(self, work: Work) -> None:
        """Learn what is to be learnt from the first microbatch."""
        raise NotImplementedError

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        if not self.tried:
            self.tried = True
            with torch.no_grad(), torch.random.fork_rng(devices=[]), suppress(Exception):
                self.try_out(work)
        return work


@breaks("FWD-34")
class FirstMicrobatchTriedOut(_Trying):
    """A copy of the first stage runs on the first microbatch itself, to learn the shape of its output."""

    def try_out(self, work: Work) -> None:
        if 0 in self.modules:
            module: Any = copy.deepcopy(self.modules[0])
            for one in module.modules():
                one._forward_pre_hooks.clear()
                one._forward_hooks.clear()
            module(*work.inputs[0], **(work.kwargs[0][0] if 0 in work.kwargs else {}))


@breaks("FWD-34")
class LossTriedOut(_Trying):
    """The loss function runs on the first target itself, to learn whether it returns a single number."""

    def try_out(self, work: Work) -> None:
        target = work.targets[0]
        if work.loss is not None and isinstance(target, Tensor):
            work.loss(target.clone(), target)
