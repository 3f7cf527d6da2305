"""OLMo-core's own pipeline schedules behind the contract.

A stage sends one tensor ``[samples, length, width]``, whose width it has as ``d_model``. The last stage computes its
loss by itself, and divides it by a factor that the caller gives: m, for a mean. The engine divides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Bystander,
    Capabilities,
    Description,
    Feature,
    GradientScale,
    Loss,
    MicrobatchRule,
    Mode,
    Operation,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.without_cuda import run_on

__all__ = ["OlmoCore"]

_REMEDY = "pip install ai2-olmo-core"
_CLASSES = {"Interleaved1F1B": "CustomScheduleInterleaved1F1B", "1F1BV": "CustomSchedule1F1BV"}
_CAPABILITIES = Capabilities(
    schedules=(
        # with fewer microbatches than ranks it ends in a KeyError (finding E39)
        ScheduleClaim(
            name="Interleaved1F1B",
            stages_per_rank=(2,),
            min_ranks=2,
            min_microbatches_per_rank=1,
            microbatches=MicrobatchRule.WHOLE_ROUNDS,
        ),
        ScheduleClaim(
            name="1F1BV",
            placement=Placement.V,
            stages_per_rank=(2,),
            min_ranks=2,
            microbatches=MicrobatchRule.WHOLE_ROUNDS,
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.MICROBATCH_LOSSES, Feature.EVAL, Feature.EVAL_LOSSES, Feature.TOKENS}
        | {Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE, Feature.LOADING}
        | {Feature.SHARED_IN_STAGE, Feature.UNUSED_PARAMETERS, Feature.BUFFERS, Feature.DROPOUT}
        | {Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
        | {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES, Feature.SAVING}
    ),
    boundary=BoundaryClaim(
        max_tensors=1,
        containers=("tensor",),
        dtypes=("float64", "float32", "bfloat16"),
        min_ndim=3,
        max_ndim=3,
    ),
    scale=GradientScale(at="loss"),
    reductions=("mean", "sum"),
    sub_groups=True,
)


class _Stage(nn.Module):
    """A stage as the engine wants it: with its width, and at the end with the loss."""

    def __init__(self, stage: nn.Module, *, width: int, loss: Loss | None) -> None:
        super().__init__()
        self.stage, self.d_model, self._loss = stage, width, loss

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, loss_div_factor: float = 1.0
    ) -> Any:
        from olmo_core.nn.lm_head import LMOutputWithLoss

        output = self.stage(x)
        if self._loss is None:
            return output
        loss = self._loss.function(output, labels)
        return LMOutputWithLoss(
            logits=output.detach(), loss=loss / loss_div_factor, ce_loss=loss.detach(), z_loss=None
        )


class _OlmoPipeline:
    """One rank's two stages and their schedule."""

    def __init__(self, plan: Plan) -> None:
        from olmo_core.train.train_module.transformer.pipeline import (
            gpu_activation_offload,
            pipeline_schedule,
            pipeline_stage,
        )

        run_on(plan.ranks.device, pipeline_schedule)
        if plan.ranks.device.type != "cuda":  # nothing is offloaded, but a stream is made
            gpu_activation_offload.get_or_init_stream = lambda **_: None
        self._modules, self._mean = plan.build_owned(), plan.loss.reduction == "mean"
        self._group = plan.ranks.pipeline_group
        # an optimizer for each part, as the engine's train module has them
        self._steps = [step_modules({s: module}, plan.optimizer) for s, module in self._modules.items()]
        (edge,) = plan.boundaries()[0].tensors
        _, self._length, width = edge.shape
        last = len(plan.stages) - 1
        self._stages = [
            pipeline_stage.CustomPipelineStage(
                _Stage(module, width=width, loss=plan.loss if s == last else None),
                s,
                len(plan.stages),
                plan.ranks.device,
                self._group or dist.group.WORLD,
            )
            for s, module in self._modules.items()
        ]
        for stage in self._stages:
            stage.p2p_dtype = edge.dtype
        self._is_first, self._is_last = 0 in self._modules, last in self._modules
        self._m = plan.num_microbatches
        self._schedule: Any = getattr(pipeline_schedule, _CLASSES[plan.schedule])(self._stages, self._m)

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        trains, m = mode is Mode.TRAIN, batch.num_microbatches
        for module in self._modules.values():
            module.train(trains)
        if m != self._m:
            self._schedule.reset_n_microbatches(m)
            self._m = m
        samples = sum(one.target.shape[0] for one in batch.microbatches)
        self._schedule.prepare_step(samples, self._length)
        factor = m if self._mean else 1
        given = {"labels": batch.target, "loss_div_factor": factor} if self._is_last else {}
        args = batch.args if self._is_first else ()
        with torch.set_grad_enabled(trains):
            found = self._schedule.step(*args, forward_only=not trains, **given)
        self._schedule.clear_step_info()
        if not self._is_last:
            return StepResult()
        own = next(outputs for stage, outputs in zip(self._stages, found, strict=True) if stage.is_last)
        return StepResult(output=torch.cat([one.logits for one in own]), losses=[one.ce_loss for one in own])

    def apply(self, operation: Operation) -> None:
        for step in self._steps:
            step(operation)

    def save(self, folder: Path) -> None:
        from olmo_core.distributed.checkpoint import save_state_dict

        save_state_dict(folder, self._train_module().state_dict_to_save(), process_group=self._group)

    def restore(self, folder: Path) -> None:
        """Do what the engine's checkpointer does in the whole world."""
        from olmo_core.distributed.checkpoint import get_checkpoint_metadata, load_state_dict

        module = self._train_module()
        state = module.state_dict_to_load(get_checkpoint_metadata(folder))
        load_state_dict(folder, state, process_group=self._group)
        module.load_state_dict(state)

    def _train_module(self) -> Any:
        """The engine's train module, as far as it has to do with states; names are those of one whole model."""
        from olmo_core.train.train_module.transformer import pipeline_train_module

        module = object.__new__(pipeline_train_module.TransformerPipelineTrainModule)
        module.model_parts = [nn.ModuleDict({str(s): stage}) for s, stage in self._modules.items()]
        module.optimizers = [step.optimizer for step in self._steps if step.optimizer is not None]
        options = pipeline_train_module.dist_cp_sd.StateDictOptions
        module.state_dict_save_opts = options(flatten_optimizer_state_dict=True, cpu_offload=True)
        module.state_dict_load_opts = options(flatten_optimizer_state_dict=True, strict=False)
        module.load_key_mapping = None
        return module

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        self._schedule, self._stages = None, []


class OlmoCore:
    """Adapter for ``olmo_core.train.train_module.transformer.pipeline``."""

    def describe(self) -> Description:
        """What the engine documents; raises `Unsupported` if it is not installed."""
        return Description(
            name="olmo-core",
            version=require_release("ai2-olmo-core", at_least=(3, 0), remedy=_REMEDY),
            capabilities=_CAPABILITIES,
            packages=("olmo_core.train.train_module.transformer.pipeline",),
        )

    def setup_process(self) -> None:
        """Import the engine, so that the first pipeline is built as fast as others."""
        import_module("olmo_core.train.train_module.transformer.pipeline.pipeline_schedule")

    def build(self, plan: Plan) -> _OlmoPipeline | Bystander:
        """Build on this rank."""
        return Bystander() if plan.ranks.pipeline_rank is None else _OlmoPipeline(plan)
