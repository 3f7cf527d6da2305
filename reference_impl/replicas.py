"""Replicas of a stage: their gradients are averaged once per step, after the stage's last backward.

Data-parallel wrappers reduce gradients from inside a backward pass. Here a stage has one backward
per microbatch, perhaps in two parts, in the order of the table; so backwards only add up, and
the reduction is requested after the last one:

* ``DistributedDataParallel`` reduces in the backward of its own forward. The stage therefore runs the wrapped
  module without the wrapper. For the reduction the wrapper runs once, around a module that hands out the
  parameters: the backward brings zeros, which change nothing, and the wrapper reduces what is there. For a wrapper
  with ``static_graph`` that is the graph, the same at every step; it is shown once when the pipeline is built.
* Our own `DataParallel` averages what is there on request. The stage again runs the module without the wrapper.
* ``fully_shard`` adds up while it is set not to synchronise. The parameters stay gathered
  for the whole step: backwards in two parts need them at times that the wrapper does not know. Of a weight part it is
  told: with mixed precision it adds up in another dtype than that of the gradients.

Before a reduction the replicas tell each other, in one small message, which of them failed and which parameters have
gradients. So no replica waits for one that failed, and a parameter that no replica used keeps None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .data_parallel import DataParallel
from .errors import PeerError


class Replicas:
    """One stage's replicas: `module` is what the stage computes with, `groups` are the groups that average."""

    def __init__(self, module: nn.Module, groups: Sequence[ProcessGroup]) -> None:
        self.module, self.groups = module, groups

    def step(self) -> AbstractContextManager[None]:
        """Surround every step, in training and evaluation."""
        return nullcontext()

    def reduce(self, *, failed: bool) -> None:
        """Average the gradients over the replicas; every replica calls this at the same point of its table.

        Raises:
            PeerError: A replica (possibly this one) `failed`; no gradient was changed.
        """
        trained = [p for p in self.module.parameters() if p.requires_grad]
        used = [p for p, yes in zip(trained, self._agree(trained, failed=failed), strict=True) if yes]
        for p in used:
            self.fill(p)
        self._average(used, trained)

    def add(self) -> None:
        """Take what a weight part has computed into the sums; a whole backward does so by itself."""

    def fill(self, parameter: Tensor) -> None:
        """Give a parameter that only other replicas used a gradient of zeros."""
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def has_gradient(self, parameter: Tensor) -> bool:
        """Whether this replica has a gradient of it."""
        return parameter.grad is not None

    def _average(self, used: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
        raise NotImplementedError

    def _agree(self, trained: Sequence[Tensor], *, failed: bool) -> list[bool]:
        """For each parameter, whether a replica has a gradient of it."""
        told = [failed, *map(self.has_gradient, trained)]
        flags = torch.tensor(told, dtype=torch.int32, device=next((p.device for p in trained), None))
        for group in self.groups:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
        someone_failed, *used = flags.tolist()
        if someone_failed:
            raise PeerError("a replica failed, so gradients were not averaged")
        return [bool(flag) for flag in used]


class _HandedOut(nn.Module):
    """Replaces a module: has its buffers, and its outputs are views of the trained parameters."""

    def __init__(self, module: nn.Module, trained: Sequence[Tensor]) -> None:
        super().__init__()
        self._trained, self.named_buffers = tuple(trained), module.named_buffers  # type: ignore[method-assign]

    def forward(self, _: None) -> tuple[Tensor, ...]:
        return tuple(parameter.view_as(parameter) for parameter in self._trained)


class _Wrapped(Replicas):
    """Replicas behind ``DistributedDataParallel``."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        super().__init__(wrapper.module, [wrapper.process_group])
        self._wrapper = wrapper
        if wrapper.static_graph:
            self._settle_graph()

    def _settle_graph(self) -> None:
        """Let the wrapper see its first backward now: its static graph consists of what reached the parameters by then.

        All microbatches would otherwise count as one, and every reduction would wait for as many gradients.
        """
        trained = [p for p in self.module.parameters() if p.requires_grad]
        gradients = [p.grad for p in trained]
        for parameter in trained:
            parameter.grad = None
        self._average([], trained)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient

    def _average(self, used: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
        # All of them: unless told otherwise the wrapper waits for every parameter it knows.
        self._wrapper.module = _HandedOut(self.module, trained)
        try:
            with torch.enable_grad():
                handed = self._wrapper(None)
            torch.autograd.backward(handed, [torch.zeros_like(tensor) for tensor in handed])
        finally:
            self._wrapper.module = self.module
        for parameter in set(trained).difference(used):
            parameter.grad = None


class _Own(Replicas):
    """Replicas behind the wrapper of `data_parallel`."""

    def __init__(self, wrapper: DataParallel) -> None:
        super().__init__(wrapper.module, [wrapper.group])
        self._wrapper = wrapper

    def _average(self, used: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
        self._wrapper.reduce(used)


class _Sharded(Replicas):
    """Replicas that hold a share of every parameter each (``fully_shard``)."""

    def __init__(self, root: Any) -> None:
        meshes = {p.device_mesh for p in root.parameters() if isinstance(p, DTensor)}
        super().__init__(root, [group for mesh in meshes for group in mesh.get_all_groups()])
        self._root = root
        root.set_reshard_after_forward(False)
        if hasattr(root, "set_manual_backward_finalization"):
            root.set_manual_backward_finalization(True)
        self._parts: list[Any] = [part for part in root.modules() if isinstance(part, FSDPModule)]

    @contextmanager
    def step(self) -> Iterator[None]:
        self._synchronise(False)
        try:
            for part in self._parts:
                part.unshard()
            yield
        except BaseException:
            for parameter in self._root.parameters():
                if not isinstance(parameter, DTensor):  # what a failed step added up, not reduced
                    parameter.grad = None
            self._root.reset_iter_state()
            raise
        finally:
            for part in self._parts:
                part.reshard()
            self._synchronise(True)

    def add(self) -> None:
        self._finalize()

    def _average(self, used: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
        self._synchronise(True)
        self._finalize()

    def _finalize(self) -> None:
        if hasattr(self._root, "finalize_backward"):
            self._root.finalize_backward()
        else:  # before torch 2.15 there is no public name for it
            self._root._get_fsdp_state()._root_post_backward_final_callback()

    def _synchronise(self, value: bool) -> None:
        self._root.set_requires_gradient_sync(value)
        self._root.set_is_last_backward(value)
        self._root.set_reshard_after_backward(value)


def replicas_of(module: nn.Module) -> Replicas | None:
    """The replicas of a stage, or None if its module is not wrapped for data parallelism.

    Every replica calls this at the same time: a wrapper with a static graph communicates.
    """
    if isinstance(module, DistributedDataParallel):
        return _Wrapped(module)
    if isinstance(module, DataParallel):
        return _Own(module)
    return _Sharded(module) if isinstance(module, FSDPModule) else None
