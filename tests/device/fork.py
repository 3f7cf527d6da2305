"""A vendor's fork of torch's pipelining, and its adapter: GPipe, without the defects that forbid level Training.

The numbers are those of docs/findings/README.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining

from pipeconform.adapter import Batch, Description, Feature, Mode, Plan, StepResult
from pipeconform.adapters.torch_pipelining import TorchPipelining

__all__ = ["Fork"]

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_always_called",
)
_UNTRIED = {Feature.DEFERRED_WEIGHTS, Feature.STAGE_OPERATIONS, Feature.DECLARED_TABLE, Feature.COMPILED}


class Stage(pipelining.PipelineStage):  # type: ignore[misc]  # of a module that is not typed
    """torch's stage, mended."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._earlier: dict[nn.Parameter, torch.Tensor] = {}

    # 1, 2: the dry run that finds out shapes leaves nothing behind

    def _compute_outputs(self, *args: Any, module: nn.Module, **kwargs: Any) -> Any:
        with _without_a_trace(module, self.device):
            return super()._compute_outputs(*args, module=module, **kwargs)

    # 3, 4: gradients of earlier steps are not divided again

    def clear_runtime_states(self) -> None:
        super().clear_runtime_states()
        self._earlier = {p: p.grad for p in self.submod.parameters() if p.grad is not None}
        for parameter in self._earlier:
            parameter.grad = None

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        super().perform_reduce_grad(grad_scale_factor)
        for parameter, earlier in self._earlier.items():
            parameter.grad = earlier if parameter.grad is None else earlier.add_(parameter.grad)
        self._earlier = {}

    # 77: hooks on a stage's input are those of one step

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        received = super()._retrieve_recv_activations(fwd_chunk_id)
        return tuple(one.detach().requires_grad_(one.requires_grad) for one in received)

    # 23: a gradient is sent and received in one layout

    def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *arguments, **named)
        if bwd_chunk_id in self.bwd_cache:
            grads = self.bwd_cache[bwd_chunk_id]
            self.bwd_cache[bwd_chunk_id] = tuple(g if g is None else g.contiguous() for g in grads)

    def _create_grad_recv_info(self, act_send_info: Any) -> Any:
        found = super()._create_grad_recv_info(act_send_info)
        for one in found:
            if one.buffer is not None:
                one.buffer = torch.empty(one.buffer.shape, dtype=one.buffer.dtype, device=one.buffer.device)
        return found


@contextlib.contextmanager
def _without_a_trace(module: nn.Module, device: torch.device) -> Iterator[None]:
    parts = list(module.modules())
    hooks = [(part, name, getattr(part, name)) for part in parts for name in _HOOKS]
    buffers = [(one, one.clone()) for one in module.buffers()]
    for part, name, _ in hooks:
        setattr(part, name, OrderedDict())
    try:
        with torch.random.fork_rng(
            [device.index or 0] if device.type != "cpu" else [], device_type=device.type
        ):
            yield
    finally:
        for part, name, given in hooks:
            setattr(part, name, given)
        with torch.no_grad():
            for one, before in buffers:
                one.copy_(before)


class _Pipeline:
    """What torch's adapter builds, but that a batch of a size that is not supported is refused (8)."""

    def __init__(self, plan: Plan, whole: Any) -> None:
        self._plan, self._whole = plan, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        owned, m, dim = self._whole.owned(), self._plan.num_microbatches, self._plan.batch_dim
        seen = [
            *(batch.args[:1] if 0 in owned else ()),
            *([batch.target] if len(self._plan.stages) - 1 in owned else ()),
        ]
        for size in (one.shape[dim] for one in seen if isinstance(one, torch.Tensor) and one.dim() > dim):
            if size % m:
                raise ValueError(f"a batch of {size} samples is not cut into {m} microbatches of one size")
        return self._whole.run(mode, batch)


class Fork(TorchPipelining):
    """The fork under GPipe."""

    def describe(self) -> Description:
        torchs = super().describe()
        claims = torchs.capabilities
        claims = dataclasses.replace(
            claims,
            schedules=tuple(one for one in claims.schedules if one.name == "GPipe"),
            features=claims.features - _UNTRIED,
            tracing=None,
            data_parallel=None,
            tensor_parallel=None,
        )
        return dataclasses.replace(
            torchs, name="a vendor's fork of torch's pipelining", capabilities=claims, variants={}
        )

    def setup_process(self) -> None:
        pipelining.PipelineStage = Stage

    def build(self, plan: Plan) -> Any:
        return _Pipeline(plan, super().build(plan))
