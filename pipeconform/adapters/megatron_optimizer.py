"""megatron-core's own optimizers: clipped steps, float32 copies of 16-bit parameters, scaled losses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import (
    AdamStep,
    LoadState,
    Operation,
    OptimizerStep,
    Plan,
    optimizer_of,
    step_modules,
)
from pipeconform.adapters.without_cuda import run_on, types_of_cuda

__all__ = ["MegatronSteps", "is_wanted"]


def is_wanted(plan: Plan) -> bool:
    """Whether the plan needs more of an optimizer than torch's have, such as gradients that lie in buffers."""
    replicated = plan.ranks.num_replicas > 1 and plan.optimizer is not None
    return plan.clipping is not None or plan.master_weights or replicated


class MegatronSteps:
    """``FP32Optimizer``, or ``Float16OptimizerWithFloat16Params`` for a plan with master weights.

    Their norms and overflows are of all ranks of the pipeline.
    """

    def __init__(self, plan: Plan, modules: Mapping[int, nn.Module], *, alone: dist.ProcessGroup) -> None:
        from megatron.core import utils
        from megatron.core.optimizer import clip_grads, grad_scaler, optimizer

        device = plan.ranks.device
        run_on(device, utils, clip_grads, grad_scaler, optimizer)
        self._types: Callable[[], contextlib.AbstractContextManager[None]] = (
            contextlib.nullcontext if device.type == "cuda" else types_of_cuda
        )
        self._without_optimizer = step_modules(modules, None)
        parameters = (p for _, module in sorted(modules.items()) for p in module.parameters())
        inner = optimizer_of(parameters, plan.optimizer)
        config = _config(plan)
        with self._types():
            if plan.master_weights:
                self._optimizer: Any = optimizer.Float16OptimizerWithFloat16Params(
                    inner, config, _scaler(plan), lambda *_: None
                )
            else:
                self._optimizer = optimizer.FP32Optimizer(inner, config, lambda *_: None)
        # as get_megatron_optimizer does, which takes whole models of Megatron's
        self._optimizer.grad_stats_parallel_group = plan.ranks.pipeline_group
        self._optimizer.tp_group = alone

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What the schedules differentiate in the place of a loss."""
        scaled: torch.Tensor = self._optimizer.scale_loss(loss)
        return scaled

    def scale(self) -> float:
        """By what losses are multiplied in the next backward."""
        return float(self._optimizer.get_loss_scale())

    def apply(self, operation: Operation) -> None:
        """Step; after loading, take the model's parameters over into the copies."""
        if isinstance(operation, OptimizerStep):
            with self._types():
                self._optimizer.step()
            return
        self._without_optimizer(operation)
        if isinstance(operation, LoadState):
            self._optimizer.reload_model_params()


def _config(plan: Plan) -> Any:
    from megatron.core.optimizer import OptimizerConfig

    assert plan.optimizer is not None, "only optimizer steps clip or keep copies"
    return OptimizerConfig(
        optimizer="adam" if isinstance(plan.optimizer, AdamStep) else "sgd",
        lr=plan.optimizer.lr,
        weight_decay=0.0,
        bf16=plan.master_weights and plan.loss_scaling is None,
        fp16=plan.loss_scaling is not None,
        clip_grad=0.0 if plan.clipping is None else plan.clipping.max_norm,
    )


def _scaler(plan: Plan) -> Any:
    from megatron.core.optimizer.grad_scaler import DynamicGradScaler

    scaling = plan.loss_scaling
    if scaling is None:
        return None
    return DynamicGradScaler(
        initial_scale=scaling.initial,
        min_scale=scaling.initial * scaling.backoff**8,
        growth_factor=2.0,
        backoff_factor=scaling.backoff,
        growth_interval=1 << 30,  # the contract's scales do not grow
        hysteresis=1,
    )
