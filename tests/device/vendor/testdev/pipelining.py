"""The vendor's fork of torch's pipelining: GPipe on its device, without what torch 2.13 violates of level Training.

The numbers are those of docs/findings/README.md.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining

__all__ = ["PipelineStage", "ScheduleGPipe"]

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_always_called",
)


class PipelineStage(pipelining.PipelineStage):  # type: ignore[misc]  # of a module that is not typed
    """torch's stage, mended."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._earlier: dict[nn.Parameter, torch.Tensor] = {}
        self.prepared = 0

    # 85: a schedule sees that another one has prepared its stage since

    def _prepare_forward_infra(self, *arguments: Any, **named: Any) -> Any:
        self.prepared += 1
        return super()._prepare_forward_infra(*arguments, **named)

    # 1, 2: the dry run that finds out shapes leaves nothing behind

    def _compute_outputs(self, *args: Any, module: nn.Module, **kwargs: Any) -> Any:
        with _without_a_trace(module, self.device):
            return super()._compute_outputs(*args, module=module, **kwargs)

    # 104: its backward may be counted, which torch.autograd.grad of leaves refuses

    def _compute_input_grads(
        self,
        outputs: list[torch.Tensor],
        all_fwd_inputs: list[Any],
        grad_outputs: list[torch.Tensor | None] | None = None,
    ) -> tuple[torch.Tensor | None, ...]:
        leaves = [one for one in all_fwd_inputs if isinstance(one, torch.Tensor) and one.requires_grad]
        if leaves:
            torch.autograd.backward(outputs, grad_outputs, inputs=leaves)
        return tuple(getattr(one, "grad", None) for one in all_fwd_inputs)

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


class ScheduleGPipe(pipelining.ScheduleGPipe):  # type: ignore[misc]
    """torch's GPipe, which refuses a batch that is not cut into microbatches of one size (8).

    Rules for keyword arguments are theirs by name, and not by place (90).
    """

    _seen = 0

    def step(self, *args: Any, target: Any = None, **named: Any) -> Any:
        chunks = self._args_chunk_spec or ()
        dims = [chunk.split_dim for chunk in chunks] or [0] * len(args)
        for one, dim in zip((*args, target), (*dims[: len(args)], 0), strict=True):
            if isinstance(one, torch.Tensor) and one.dim() > dim and one.shape[dim] % self._n_microbatches:
                raise ValueError(
                    f"a batch of {one.shape[dim]} is not cut into {self._n_microbatches} microbatches of one size"
                )
        rules = self._kwargs_chunk_spec
        if rules:
            self._kwargs_chunk_spec = {name: rules[name] for name in named if name in rules}
        if self._stage.prepared != self._seen:
            self._stage_forward_initialized = self._stage_backward_initialized = False
        output = super().step(*args, target=target, **named)
        self._seen = self._stage.prepared
        return output


@contextlib.contextmanager
def _without_a_trace(module: nn.Module, device: torch.device) -> Iterator[None]:
    parts = list(module.modules())
    hooks = [(part, name, getattr(part, name)) for part in parts for name in _HOOKS]
    buffers = [(one, one.clone()) for one in module.buffers()]
    held = [(part, dict(part._buffers)) for part in parts]
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
        for part, own in held:
            part._buffers.update(own)
        for one, before in buffers:
            one.data.copy_(before)  # a new version would forbid the dry run's own backward
