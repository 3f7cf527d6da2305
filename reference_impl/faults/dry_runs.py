"""Faults of engines that try out a stage, or the loss function, before the first step."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from pipeconform.adapter import Batch, Mode

from ..adapter import ReferencePipeline
from ..containers import arguments_of, leaves_of
from ..runtime import Work
from ..stage import Stage
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
            module = _unheard(self.modules[0])
            module(*work.inputs[0], **(work.kwargs[0][0] if 0 in work.kwargs else {}))


@breaks("FWD-34")
class LossTriedOut(_Trying):
    """The loss function runs on the first target itself, to learn whether it returns a single number."""

    def try_out(self, work: Work) -> None:
        target = work.targets[0]
        if work.loss is not None and isinstance(target, Tensor):
            work.loss(target.clone(), target)


@breaks(
    "FWD-26",
    status="error",
    tells=r"_will_engine_execute_node",
    source="https://github.com/pytorch/pytorch/issues/131753",
)
class GradientsTriedOut(Stage):
    """A copy of the module runs before the first forward, and only the gradients of its inputs are asked for.

    torch cannot tell a hook on several leaves whether it will come to them in such a pass, and raises.
    """

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        super().__init__(module, **settings)
        self._tried = False

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if differentiate and not self._tried:
            self._tried = True
            self._try_out(inputs, kwargs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)

    def _try_out(self, inputs: Any, kwargs: Mapping[str, Any]) -> None:
        given = arguments_of(inputs)
        starts = [
            one.detach().clone().requires_grad_() if isinstance(one, Tensor) and one.requires_grad else one
            for one in given
        ]
        wanted = [one for one in starts if isinstance(one, Tensor) and one.requires_grad]
        if not wanted or _in_parts(self.module):
            return
        with torch.random.fork_rng(devices=[]):
            outputs = [
                one for one in leaves_of(_unheard(self.module)(*starts, **kwargs)) if isinstance(one, Tensor)
            ]
            ends = [one for one in outputs if one.requires_grad]
            gradients = [torch.ones_like(one) for one in ends]
            torch.autograd.grad(ends, wanted, gradients, allow_unused=True)


def _unheard(module: nn.Module) -> nn.Module:
    """A copy that no hook of the harness hears."""
    copied = copy.deepcopy(module)
    for one in copied.modules():
        one._forward_pre_hooks.clear()
        one._forward_hooks.clear()
    return copied


def _in_parts(module: nn.Module) -> bool:
    """Whether a module's parameters are kept in parts, so that it cannot be copied."""
    sharded = any(isinstance(one, FSDPModule) for one in module.modules())
    return sharded or any(isinstance(one, DTensor) for one in module.parameters())
