"""NeMo AutoModel's ``AutoPipeline`` behind the contract.

It splits a Hugging Face model by the names of its layers and runs the stages under the schedules of
``torch.distributed.pipelining``. Here the model has one layer for each stage, which is put in its place where users
shard a part of the model: after the split, as a checkpoint's weights are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Bystander,
    Capabilities,
    DataParallelClaim,
    Description,
    Feature,
    GradientScale,
    Mode,
    Operation,
    OptimizerStep,
    Plan,
    StepResult,
    TensorSpec,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.torch_batches import split_dims, step_arguments
from pipeconform.adapters.torch_schedules import driven
from pipeconform.stage_wrapping import wrapped

__all__ = ["AutoModel"]

_REMEDY = "pip install --no-deps nemo-automodel; pip install transformers"
_SLACK = "PIPECONFORM_AUTOMODEL_POOL_SLACK"
"""If this variable is set, receive buffers are pooled (``pp_recv_buffer_pool``) with this slack."""
_IMPORTED = (
    "nemo_automodel.components.checkpoint.checkpointing",
    "nemo_automodel.components.distributed.pipelining.autopipeline",
    "nemo_automodel.components.training.utils",
    "transformers.modeling_outputs",
)
_CAPABILITIES = Capabilities(
    schedules=driven(
        "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.MICROBATCH_LOSSES, Feature.EVAL, Feature.EVAL_LOSSES, Feature.ACCUMULATION}
        | {Feature.KWARGS, Feature.SPLIT_DIMS, Feature.BLOCK_MASKS, Feature.OBJECTS, Feature.TOKENS}
        | {
            Feature.FROZEN,
            Feature.UNUSED_PARAMETERS,
            Feature.SHARED_IN_STAGE,
            Feature.BUFFERS,
            Feature.DROPOUT,
        }
        | {Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING, Feature.AUTOCAST}
        | {Feature.OPTIMIZER, Feature.CLIPPING, Feature.GRADIENT_NORM, Feature.STATE, Feature.LOADING}
        | {Feature.VARYING_SHAPES, Feature.SAVING}
    ),
    boundary=BoundaryClaim(
        max_tensors=4,
        containers=("tensor", "tuple"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        no_grad_tensors=True,
        non_float_tensors=True,
    ),
    scale=GradientScale(at="gradient"),
    reductions=("mean", "sum"),
    sub_groups=True,
    data_parallel=DataParallelClaim(wrappers=("fully_shard",), accumulation=True),
)


class _Layers(nn.Module):
    """Where AutoModel looks for a model's layers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(count))


class _Config:
    """What the parts of the split model ask the adapter: as a model's own configuration, one object for all of them."""

    def __init__(self, pipeline: _AutoPipeline) -> None:
        self.pipeline = pipeline
        # asked for, but not used: the model says itself what its parts take and give
        self.hidden_size = self.vocab_size = 1

    def __deepcopy__(self, memo: object) -> _Config:
        return self

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """What is written beside a checkpoint's weights."""
        return iter(())


class _Model(nn.Module):
    """A model whose layers are the stages; the engine leaves one in each of its copies."""

    _pp_keep_self_forward = True  # the engine then replaces no forward

    def __init__(self, count: int, config: _Config) -> None:
        super().__init__()
        self.model, self.config = _Layers(count), config

    @property
    def stage(self) -> int:
        (name,) = self.model.layers._modules
        return int(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (stage,) = self.model.layers.children()
        return stage(*args, **kwargs)

    def get_pipeline_kwargs_chunk_dims(self, kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The dimensions in which keyword arguments are split, if not the first."""
        dims = self.config.pipeline.kwarg_dims
        return {name: dims[name] for name in kwargs if name in dims}

    def get_pipeline_stage_metas(self, **sizes: Any) -> tuple[tuple[torch.Tensor, ...], ...]:
        """Inputs and outputs of this part for microbatches of ``seq_len`` samples."""
        return self.config.pipeline.metas(self.stage, samples=sizes["seq_len"])


class _AutoPipeline:
    """One rank's parts of the model and their schedule."""

    def __init__(self, plan: Plan) -> None:
        from nemo_automodel.components.distributed.pipelining import AutoPipeline

        self._plan, self._modules, self._parts = plan, dict[int, nn.Module](), dict[int, nn.Module]()
        group: Any = plan.ranks.pipeline_group or dist.group.WORLD
        # meshes with equal names and ranks are equal, and torch's caches then mix up their groups
        self._axis = f"pp_{group.group_name}"
        self._mesh = DeviceMesh.from_group(group, plan.ranks.device.type, mesh_dim_names=(self._axis,))
        self.kwarg_dims = split_dims(plan, plan.owned_stages())
        self._outputs: tuple[TensorSpec, ...] = ()
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._samples: int | None = None
        slack = os.environ.get(_SLACK)
        self._pipeline: Any = AutoPipeline(
            self._mesh,
            pp_axis_name=self._axis,
            pp_schedule=plan.schedule.lower(),
            pp_microbatch_size=plan.microbatch_size,
            pp_batch_size=plan.microbatch_size * plan.num_microbatches,
            module_fqns_per_model_part=[[f"model.layers.{s}"] for s in range(len(plan.stages))],
            device=plan.ranks.device,
            scale_grads_in_schedule=plan.loss.reduction == "mean",
            pp_recv_buffer_pool=slack is not None,
            pp_recv_buffer_pool_slack=2 if slack is None else int(slack),
        )
        model = _Model(len(plan.stages), _Config(self))
        built = plan.build_owned()

        def fill(part: _Model, **_: Any) -> None:
            stage = part.stage
            self._modules[stage], self._parts[stage] = built[stage], part
            part.model.layers.register_module(str(stage), built[stage])
            wrapped(plan, stage, part)  # in place

        self._pipeline.build(model, loss_fn=self._loss, parallelize_fn=fill)
        # an optimizer for each part, as in AutoModel's recipes
        self._steps = {s: step_modules({s: module}, plan.optimizer) for s, module in self._modules.items()}

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        for module in self._modules.values():
            module.train(mode is Mode.TRAIN)
        last = len(self._plan.stages) - 1 in self._modules
        if self._plan.varying_shapes:
            self._resize(batch)
        args, given = step_arguments(
            batch, owned=self._modules.keys(), targets=last, batch_dim=self._plan.batch_dim
        )
        losses: list[torch.Tensor] | None = [] if last else None
        schedule = self._pipeline.info.schedule
        if mode is Mode.EVAL:
            with torch.no_grad():
                output = schedule.eval(*args, **given, losses=losses)
        elif len(args) > 1:  # AutoPipeline.step() takes one; AutoModel's recipes call the schedule
            output = schedule.step(*args, **given, losses=losses)
        else:
            output = self._pipeline.step(*(args or (None,)), **given, losses=losses)
        return StepResult(output=output, losses=losses)

    def _loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        given = output if isinstance(output, tuple) else (output,)
        self._outputs = tuple(
            TensorSpec(shape=tuple(one.shape), dtype=one.dtype, requires_grad=one.requires_grad)
            for one in given
        )
        return self._plan.loss.function(output, target)

    def _resize(self, batch: Batch) -> None:
        """Say how large microbatches are, if they are not as large as before."""
        first = batch.microbatches[0].args
        samples = first[0].shape[batch.batch_dim]
        if self._samples not in (None, samples):
            self._inputs = tuple(torch.empty_like(one, device="meta") for one in first)
            self._pipeline.update_seq_len(samples)
        self._samples = samples

    def metas(self, stage: int, *, samples: int) -> tuple[tuple[torch.Tensor, ...], ...]:
        """A stage's inputs and outputs for microbatches of so many samples, without values."""

        def sized(specs: tuple[TensorSpec, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(
                torch.empty(
                    [samples if dim == one.batch_dim else size for dim, size in enumerate(one.shape)],
                    dtype=one.dtype,
                    device="meta",
                )
                for one in specs
            )

        known = [one.tensors for one in self._plan.boundaries()]
        return (
            sized(known[stage - 1]) if stage else self._inputs,
            sized(known[stage] if stage < len(known) else self._outputs),
        )

    def apply(self, operation: Operation) -> None:
        clipping = self._plan.clipping
        if isinstance(operation, OptimizerStep) and clipping is not None:
            self._clipped(clipping.max_norm, norm_type=clipping.norm_type)
        for step in self._steps.values():
            step(operation)

    def gradient_norm(self) -> torch.Tensor:
        return self._clipped(math.inf, norm_type=2.0)

    def _clipped(self, limit: float, *, norm_type: float) -> torch.Tensor:
        from nemo_automodel.components.training.utils import clip_grad_norm

        norm: torch.Tensor = clip_grad_norm(
            limit,
            self._pipeline.parts,
            norm_type=norm_type,
            pp_enabled=True,
            device_mesh=self._mesh,
            pp_axis_name=self._axis,
        )
        return norm

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        checkpointer = self._checkpointer(folder)
        checkpointer.save_model(list(self._parts.values()), str(folder))
        if self._plan.optimizer is not None:
            checkpointer.save_optimizer(weights_path=str(folder), **self._optimizers())

    def restore(self, folder: Path) -> None:
        checkpointer = self._checkpointer(folder)
        checkpointer.load_model(list(self._parts.values()), str(folder / "model"))
        if self._plan.optimizer is not None:
            checkpointer.load_optimizer(weights_path=str(folder), **self._optimizers())

    def _checkpointer(self, folder: Path) -> Any:
        from nemo_automodel.components.checkpoint.config import CheckpointingConfig

        group = self._plan.ranks.pipeline_group
        config = CheckpointingConfig(checkpoint_dir=str(folder), save_consolidated=False)
        rank = self._plan.ranks.pipeline_rank
        return config.build(dp_rank=0, tp_rank=0, pp_rank=rank, process_group=group, pp_group=group)

    def _optimizers(self) -> dict[str, Any]:
        """The optimizers, their parts of the model and the stages' numbers; frozen parts have none."""
        found = {s: step.optimizer for s, step in self._steps.items() if step.optimizer is not None}
        return {
            "optimizer": list(found.values()),
            "model": [self._parts[s] for s in found],
            "optimizer_part_ids": list(found),
        }

    def close(self) -> None:
        self._pipeline = None


class AutoModel:
    """Adapter for ``nemo_automodel.components.distributed.pipelining``."""

    def describe(self) -> Description:
        """What AutoModel documents; raises `Unsupported` if it is not installed."""
        return Description(
            name="nemo-automodel",
            version=require_release("nemo-automodel", at_least=(0, 7), remedy=_REMEDY),
            capabilities=_CAPABILITIES,
            packages=("nemo_automodel.components.distributed.pipelining",),
            built_on="torch.distributed.pipelining",
        )

    def setup_process(self) -> None:
        """Import the engine and what it imports late, so that the first pipeline is built as fast as others."""
        for name in _IMPORTED:
            import_module(name)

    def build(self, plan: Plan) -> _AutoPipeline | Bystander:
        """Build on this rank."""
        return Bystander() if plan.ranks.pipeline_rank is None else _AutoPipeline(plan)
