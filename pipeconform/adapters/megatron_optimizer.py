"""megatron-core's own optimizers: steps, float32 copies of 16-bit parameters, scaled losses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
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
    step_modules,
)
from pipeconform.adapters.without_cuda import run_on, types_of_cuda

__all__ = ["MegatronSteps"]


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
        inner, config, begins = _inner(plan, parameters), _config(plan), _first_state(plan)
        with self._types():
            if plan.master_weights:
                self.optimizer: Any = optimizer.Float16OptimizerWithFloat16Params(
                    inner, config, _scaler(plan), begins
                )
            else:
                self.optimizer = optimizer.FP32Optimizer(inner, config, begins)
        # as get_megatron_optimizer does, which takes whole models of Megatron's
        self.optimizer.grad_stats_parallel_group = plan.ranks.pipeline_group
        self.optimizer.tp_group = alone

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What the schedules differentiate in the place of a loss."""
        scaled: torch.Tensor = self.optimizer.scale_loss(loss)
        return scaled

    def scale(self) -> float:
        """By what losses are multiplied in the next backward."""
        return float(self.optimizer.get_loss_scale())

    def load(self, state: dict[str, Any]) -> None:
        """Take over what another one's ``state_dict`` or ``sharded_state_dict`` had."""
        with self._types():
            self.optimizer.load_state_dict(state)

    def apply(self, operation: Operation) -> None:
        """Step; after loading, take the model's parameters over into the copies."""
        if isinstance(operation, OptimizerStep):
            with self._types():
                self.optimizer.step()
            return
        self._without_optimizer(operation)
        if isinstance(operation, LoadState):
            self.optimizer.reload_model_params()


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


def _inner(plan: Plan, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Over one group, as get_megatron_optimizer makes it, which is empty on a rank that trains nothing."""
    assert plan.optimizer is not None, "all that comes here has steps"
    trainable = [p for p in dict.fromkeys(parameters) if p.requires_grad]
    group = {
        "params": trainable,
        "wd_mult": 1.0,
        "lr_mult": 1.0,
        "is_expert_parallel": False,
        "is_decoupled_lr": False,
    }
    if isinstance(plan.optimizer, AdamStep):
        return torch.optim.Adam([group], lr=plan.optimizer.lr)
    return torch.optim.SGD([group], lr=plan.optimizer.lr, momentum=plan.optimizer.momentum)


def _first_state(plan: Plan) -> Callable[..., None] | None:
    """What an optimizer's state is before a checkpoint is loaded, as get_megatron_optimizer has it; SGD has nothing."""
    if not isinstance(plan.optimizer, AdamStep):
        return None

    def begin(optimizer: torch.optim.Optimizer, config: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if not optimizer.state[p]:
                    optimizer.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    return begin


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
