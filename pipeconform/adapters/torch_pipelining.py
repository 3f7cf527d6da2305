"""torch.distributed.pipelining behind the contract: manual and traced stages under its eight schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules

from pipeconform.adapter import (
    Along,
    Batch,
    Boundary,
    BoundaryClaim,
    Capabilities,
    CustomMerge,
    DataParallelClaim,
    Description,
    ErrorContract,
    Feature,
    GradientScale,
    MergeRule,
    MistakeKind,
    Mode,
    Operation,
    Plan,
    StageOperations,
    StepResult,
    TensorParallelClaim,
    TracingClaim,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters import torch_release, torch_saving, torch_stages, torch_tables, torch_tracing
from pipeconform.adapters.torch_batches import split_dims, step_arguments
from pipeconform.adapters.torch_declared import declared
from pipeconform.adapters.torch_schedules import SCHEDULES
from pipeconform.stage_wrapping import axis_of_parts, bare, wrapped

_CAPABILITIES = Capabilities(
    schedules=SCHEDULES,
    features=frozenset(
        {
            Feature.OUTPUTS,
            Feature.OUTPUTS_ON_REQUEST,
            Feature.MICROBATCH_LOSSES,
            Feature.EVAL,
            Feature.EVAL_LOSSES,
            Feature.SECOND_SCHEDULE,
            Feature.INPUT_GRADIENTS,
            Feature.ACCUMULATION,
            Feature.KWARGS,
            Feature.KWARG_GRADIENTS,
            Feature.LOSS_KWARGS,
            Feature.STRUCTURED_OUTPUTS,
            Feature.TOKENS,
            Feature.FROZEN,
            Feature.FREEZING,
            Feature.LOSS_PARAMETERS,
            Feature.UNUSED_PARAMETERS,
            Feature.SHARED_IN_STAGE,
            Feature.BUFFERS,
            Feature.DROPOUT,
            Feature.USER_HOOKS,
            Feature.OPTIMIZER,
            Feature.STATE,
            Feature.DECLARED_TABLE,
            Feature.STAGE_OPERATIONS,
            Feature.DEFERRED_WEIGHTS,
            Feature.CUSTOM_FUNCTIONS,
            Feature.CHECKPOINTING,
            Feature.COMPILED,
            Feature.AUTOCAST,
            Feature.OBJECTS,
            Feature.BATCH_DIM,
            Feature.BATCH_SOURCES,
            Feature.SPLIT_DIMS,
            Feature.MERGE_DIMS,
            Feature.CUSTOM_MERGES,
            Feature.BLOCK_MASKS,
            Feature.LOADING,
            Feature.SAVING,
            Feature.DECLARED_BOUNDARIES,
            Feature.TABLES,
            Feature.LATE_RECEIVES,
            Feature.WRITTEN_TABLES,
        }
    ),
    boundary=BoundaryClaim(
        max_tensors=5,
        containers=("tensor", "tuple", "list"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        min_ndim=0,
        max_ndim=5,
        no_grad_tensors=True,
        non_float_tensors=True,
        empty_tensors=True,
        complex_tensors=True,
    ),
    scale=GradientScale(at="gradient", input_gradients_scaled=False),
    reductions=("mean", "sum"),
    sub_groups=True,
    # a keyword argument of a later stage, and a value used beyond the next stage, are not supported
    tracing=TracingClaim(kwargs="first_stage", knows_boundaries=True),
    data_parallel=DataParallelClaim(
        wrappers=("ddp", "fully_shard"),
        options=("bucket_views", "find_unused", "hook", "nested", "mixed_precision"),
        accumulation=True,
        synchronised_norms=True,
    ),
    tensor_parallel=TensorParallelClaim(
        sequence=True,
        sharded=True,
        boundaries=("sequence", "width", "whole"),
        batches=("samples", "sequence", "width", "whole"),
    ),
)


_PROMISES: Mapping[str, tuple[str, ...]] = {
    MistakeKind.SOURCE: ("ValueError",),
    MistakeKind.NO_GRADIENTS: ("RuntimeError",),
}
"""What step() documents, or refuses in its first lines."""

_VALIDATED: Mapping[str, tuple[str, ...]] = {
    MistakeKind.INPUT_SHAPE: ("PipeliningMetadataError",),
    MistakeKind.INPUT_DTYPE: ("PipeliningMetadataError",),
    MistakeKind.OUTPUT_SHAPE: ("PipeliningMetadataError",),
    MistakeKind.OUTPUT_DTYPE: ("PipeliningMetadataError",),
}
"""What torch compares before and after each stage when its debug level is DETAIL (stage.py, _runtime_validate)."""


class _TorchPipeline:
    """One rank's stages and schedule object."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        traced = {} if plan.split is None else torch_tracing.traced_stages(plan, plan.split)
        built = plan.build_owned() if plan.split is None else {s: traced[s].submod for s in traced}
        replicated = {s: wrapped(plan, s, module) for s, module in built.items()}
        self._modules = {s: bare(module) for s, module in replicated.items()}
        self._apply = step_modules(self._modules, plan.optimizer)
        self._schedule: Any = None
        self._second: Any = None
        if not self._modules:
            return
        self._stages = traced or {
            s: pipelining.PipelineStage(
                module,
                s,
                len(plan.stages),
                plan.ranks.device,
                **declared(plan, s),
                group=plan.ranks.pipeline_group,
                dw_builder=plan.deferred_weights(built[s]),
                **_mesh_for(plan),
            )
            for s, module in replicated.items()
        }
        stages = list(self._stages.values())
        # torch must report what is wrong with a plan: an unknown name, or several stages for a schedule of one
        schedule_class: Any = _named(plan.schedule)
        several = len(stages) > 1 or issubclass(schedule_class, schedules.PipelineScheduleMulti)
        specs = {
            **_split_along(plan.batch_dim),
            **_merged_by(plan.output_rules),
            **_kwarg_specs(plan, self._modules),
            **({"defer_pp_recv": True} if plan.late_receives else {}),
        }
        torch_release.require_taken(schedule_class, specs)
        if plan.table is not None:  # a table takes what the schedule takes in whose place it is
            schedule_class = schedules._PipelineScheduleRuntime

        def make(kind: Any, **options: Any) -> Any:
            owned = stages if several else stages[0]
            mean = plan.loss.reduction == "mean"
            return kind(owned, plan.num_microbatches, **specs, scale_grads=mean, **options)

        self._schedule = make(schedule_class, loss_fn=_loss_of(plan) if plan.trains else None)
        if plan.second_schedule:
            self._second = make(schedule_class, loss_fn=None)
        if plan.table is not None:
            torch_tables.load_table(self._schedule, plan.table)
        if plan.rewritten:
            for form in ("compute_only", "compute_comms"):
                written = torch_tables.written_table(self._schedule, form=form)
                self._schedule = make(schedules._PipelineScheduleRuntime, loss_fn=_loss_of(plan))
                torch_tables.load_table(self._schedule, written, form=form)

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self._schedule is None:
            return StepResult()
        first, last = 0 in self._modules, len(self._plan.stages) - 1 in self._modules
        for module in self._modules.values():
            module.train(mode is Mode.TRAIN)
        # eval() computes the loss too and needs the target, unless the schedule has no loss function
        judges = last and self._plan.trains
        args, given = step_arguments(
            batch,
            owned=self._modules.keys(),
            targets=judges and not (mode is Mode.EVAL and self._second is not None),
            batch_dim=self._plan.batch_dim,
        )
        losses: list[torch.Tensor] = []
        asked: dict[str, Any] = {"losses": losses} if judges else {}
        if batch.loss_kwargs:
            asked["loss_kwargs"] = dict(batch.loss_kwargs)
        if mode is Mode.EVAL:
            with torch.no_grad():
                if self._second is not None:
                    return StepResult(output=self._second.step(*args, **given))
                output = self._schedule.eval(*args, **given, **asked)
            return StepResult(output=output, losses=losses if judges else None)
        if not batch.returns_outputs:  # torch keeps the last stage's outputs until the next step otherwise
            asked["return_outputs"] = False
        output = self._schedule.step(*args, **given, **asked)
        gradients = tuple(arg.grad for arg in batch.args) if first else None
        return StepResult(output=output, losses=losses if last else None, input_gradients=gradients)

    def open_stages(self, batch: Batch) -> Mapping[int, StageOperations]:
        if self._schedule is None:
            return {}
        several = isinstance(self._schedule, schedules.PipelineScheduleMulti)
        return torch_stages.open_stages(
            self._stages,
            batch,
            initialise=self._schedule._initialize_stages if several else self._schedule._initialize_stage,
            loss=self._plan.loss,
            scale_grads=self._plan.loss.reduction == "mean",
        )

    def apply(self, operation: Operation) -> None:
        self._apply(operation)

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        if self._modules:
            torch_saving.save(self._modules, self._apply.optimizer, folder, self._plan.ranks.pipeline_group)

    def restore(self, folder: Path) -> None:
        if self._modules:
            torch_saving.restore(
                self._modules, self._apply.optimizer, folder, self._plan.ranks.pipeline_group
            )

    def table(self) -> str | None:
        return None if self._schedule is None else torch_tables.declared_table(self._schedule)

    def boundaries(self) -> Sequence[Boundary]:
        return torch_tracing.known_boundaries(self._plan, self._modules)

    def close(self) -> None:
        self._schedule, self._second, self._stages = None, None, {}


def _named(schedule: str) -> Any:
    """Return torch's schedule class with this name; torch itself knows all but one by name."""
    if schedule == "ForwardOnly":
        return torch_release.CLASSES[schedule]
    return schedules.get_schedule_class(schedule)


def _split_along(batch_dim: int) -> dict[str, Any]:
    """The dimension in which a model's only input is split and its only output merged, if not 0."""
    if not batch_dim:
        return {}
    spec = pipelining.microbatch.TensorChunkSpec
    (along,) = specs = spec.from_tuple((batch_dim,))
    return {"args_chunk_spec": specs, "output_merge_spec": along}


def _merged_by(rules: Sequence[MergeRule | None]) -> dict[str, Any]:
    """How outputs are merged, if one is merged in another way than along dimension 0."""
    return {"output_merge_spec": tuple(map(_merge_spec, rules))} if rules else {}


def _merge_spec(rule: MergeRule | None) -> Any:
    if isinstance(rule, CustomMerge):
        # torch begins with a user's value, the contract with the first microbatch's
        def merged(before: Any, value: Any) -> Any:
            return value if before is None else rule.function(before, value)

        return pipelining.microbatch._CustomReducer(None, merged)  # type: ignore[no-untyped-call]
    return pipelining.microbatch.TensorChunkSpec(rule.dim if isinstance(rule, Along) else 0)  # type: ignore[no-untyped-call]


def _kwarg_specs(plan: Plan, stages: Iterable[int]) -> dict[str, Any]:
    """The dimensions in which this rank's keyword arguments are split, if one is split in another than usual."""
    dims = split_dims(plan, stages)
    return {"kwargs_chunk_spec": pipelining.microbatch.TensorChunkSpec.from_dict(dims)} if dims else {}


def _mesh_for(plan: Plan) -> dict[str, Any]:
    """A stage's mesh, where the plan has one; not every release of torch takes one."""
    return {} if plan.ranks.mesh is None else {"get_mesh": _mesh_of(plan.ranks.mesh)}


def _mesh_of(mesh: DeviceMesh) -> Callable[..., DeviceMesh]:
    """The axis of a stage's mesh over which tensors between stages are cut: torch asks for it by name and size."""
    axis = axis_of_parts(mesh)
    return lambda names, layout: axis


def _loss_of(plan: Plan) -> Callable[..., torch.Tensor]:
    """The plan's loss, which expects the batch in the same dimension as the outputs."""
    function, dim = plan.loss.function, plan.batch_dim
    if not dim:
        return function
    return lambda output, target, **others: function(output, target.movedim(0, dim), **others)


class TorchPipelining:
    """Adapter for torch.distributed.pipelining."""

    def describe(self) -> Description:
        level: object = dist.get_debug_level()  # type: ignore[attr-defined]  # public, says its page
        validates = level == dist.DebugLevel.DETAIL  # type: ignore[attr-defined]
        return Description(
            name="torch.distributed.pipelining",
            version=str(torch.__version__),
            capabilities=torch_release.claims_here(_CAPABILITIES),
            errors=torch_release.promises_here(
                ErrorContract(promises={**_PROMISES, **(_VALIDATED if validates else {})})
            ),
            variants={"validated": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
            packages=("torch.distributed.pipelining",),
        )

    def setup_process(self) -> None:
        """Do nothing: torch needs no preparation."""

    def build(self, plan: Plan) -> _TorchPipeline:
        return _TorchPipeline(plan)
