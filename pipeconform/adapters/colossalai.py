"""ColossalAI's pipeline schedules behind the contract.

The schedules call a module with the fields of a whole batch, of which they cut the microbatches, and with what the
stage before returned, a dict of tensors by name. They divide the loss by m, and return the mean of the losses, and the
merged output. Interleaved stages are a list of modules, those of the zero-bubble schedule one module that is told which
it is. Optimizers and checkpoints are those of the booster's plugin for pipelines.

They are written for NCCL. With gloo, the adapter answers them that the group is not one of NCCL or HCCL, for which they
would ask torch by a name that it does not have, and every send is waited for (``overlap_p2p=False``): gloo may lose a
message whose request is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    MicrobatchRule,
    Mode,
    Operation,
    OptimizerStep,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.colossalai_booster import Boosted, import_booster
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.whole_world import require_whole_world

__all__ = ["ColossalAI"]

_ZERO_BUBBLE = "ZBVZeroBubble"
_BOUNDARY = BoundaryClaim(
    max_tensors=4,
    containers=("tensor", "tuple"),
    dtypes=("float32", "bfloat16"),
    no_grad_tensors=True,
    non_float_tensors=True,
)
_CAPABILITIES = Capabilities(
    mode_from="gradients",
    schedules=(
        ScheduleClaim(name="1F1B", family="one_f_one_b", min_ranks=2, min_microbatches_per_rank=1),
        ScheduleClaim(
            name="Interleaved1F1B",
            family="interleaved_one_f_one_b_megatron",
            stages_per_rank=(2, 3, 4),
            min_ranks=2,
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
            # a rank keeps shapes and dtypes once, for all its stages
            boundary=replace(_BOUNDARY, differ=False),
        ),
        ScheduleClaim(
            name=_ZERO_BUBBLE,  # in an order that follows from costs, so of no family
            placement=Placement.V,
            stages_per_rank=(2,),
            min_ranks=2,
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
            takes_placement=False,
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS, Feature.EVAL}
        | {Feature.EVAL_LOSSES, Feature.TOKENS, Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE}
        | {
            Feature.FROZEN,
            Feature.FREEZING,
            Feature.LOSS_PARAMETERS,
            Feature.UNUSED_PARAMETERS,
            Feature.SHARED_IN_STAGE,
            Feature.BUFFERS,
        }
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
        | {Feature.LOADING, Feature.SAVING}
    ),
    boundary=_BOUNDARY,
    patience=10.0,
)
_COSTS = {"f_cost": 1, "b_cost": 1, "w_cost": 1, "c_cost": 1, "f_mem": 10, "b_mem": -4, "w_mem": -6}
"""Of a forward, the two parts of a backward and a message, from which the zero-bubble schedule makes its order."""


class _Stage(nn.Module):
    """A stage in the engine's form: it takes what the one before returned by name, and returns a dict."""

    def __init__(self, inner: nn.Module, *, is_last: bool) -> None:
        super().__init__()
        self.inner, self._is_last = inner, is_last

    def forward(self, inputs: tuple[Any, ...], target: Any, **received: Any) -> Any:
        arrived = [received[f"tensor{k}"] for k in range(len(received))]
        found = self.inner(*(arrived or inputs))
        if self._is_last:
            return found
        return {f"tensor{k}": one for k, one in enumerate(found if isinstance(found, tuple) else (found,))}


class _Chunks(nn.Module):
    """The two stages of a rank for the zero-bubble schedule, which says which of them it means."""

    def __init__(self, stages: list[_Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, *, stage_index: int, **fields: Any) -> Any:
        return self.stages[stage_index](**fields)

    def no_sync(self) -> AbstractContextManager[None]:
        """Leave gradients as they are: there are no replicas."""
        return nullcontext()


class _ColossalAIPipeline:
    """One rank's stages, and the schedule for them."""

    def __init__(self, plan: Plan) -> None:
        from colossalai.cluster import ProcessGroupMesh
        from colossalai.interface import OptimizerWrapper

        self._loss, last = plan.loss, len(plan.stages) - 1
        self._modules = plan.build_owned()
        whole = [
            _Stage(self._modules[s] if s in self._modules else plan.stages[s](), is_last=s == last)
            for s in range(last + 1)
        ]
        self._mesh = ProcessGroupMesh(len(plan.ranks.pipeline_ranks), 1)
        self._model, self._schedule = _driven(plan, [whole[s] for s in self._modules], self._mesh)
        self._boosted = Boosted(plan, whole, manager=self._schedule.stage_manager, mesh=self._mesh)
        self._without_optimizer = step_modules(self._modules, None)
        # The engine runs a backward through an optimizer, whether there is one or not.
        nothing = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
        self._optimizer = self._boosted.optimizer or OptimizerWrapper(nothing)

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        trains = mode is Mode.TRAIN
        self._model.train(trains)
        with nullcontext() if trains else torch.no_grad():
            got = self._schedule.forward_backward_step(
                self._model,
                iter([{"inputs": tuple(batch.args), "target": batch.target}]),
                self._criterion,
                self._optimizer if trains else None,
                return_loss=True,
                return_outputs=True,
            )
        return StepResult(output=got["outputs"], loss=got["loss"])

    def _criterion(self, output: Any, microbatch: Mapping[str, Any]) -> torch.Tensor:
        return self._loss.function(output, microbatch["target"])

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, OptimizerStep):
            self._optimizer.step()
        else:
            self._without_optimizer(operation)

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        self._boosted.save(folder)

    def restore(self, folder: Path) -> None:
        self._boosted.restore(folder)

    def close(self) -> None:
        """Destroy the groups of the engine's mesh."""
        self._mesh.destroy_mesh_process_groups()


class ColossalAI:
    """Adapter for ``colossalai.pipeline.schedule``."""

    def describe(self) -> Description:
        """The schedules' documented features; raises `Unsupported` if it is not installed."""
        # its own requirements ask for a torch before 2.6, and for much that its schedules do not use
        remedy = "pip install --no-deps colossalai, and what it then lacks"
        release = require_release("colossalai", at_least=(0, 5), remedy=remedy)
        return Description(
            name="colossalai", version=release, capabilities=_CAPABILITIES, packages=("colossalai.pipeline",)
        )

    def setup_process(self) -> None:
        """Import the engine, have it use the run's device, and mend what keeps its messages from gloo."""
        import_booster()
        from colossalai import accelerator
        from colossalai.pipeline import p2p

        if dist.get_backend() == "gloo":
            accelerator.set_accelerator("cpu")
            p2p._check_for_nccl_hccl_backend = lambda group: False

    def build(self, plan: Plan) -> _ColossalAIPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world, of which the engine makes its mesh.
        """
        require_whole_world(plan.ranks)
        return _ColossalAIPipeline(plan)


def _driven(plan: Plan, stages: list[_Stage], mesh: Any) -> tuple[nn.Module, Any]:
    """What the schedule calls as the model, and the schedule."""
    from colossalai.pipeline import schedule
    from colossalai.pipeline.schedule.v_schedule import PipelineGraph
    from colossalai.pipeline.stage_manager import PipelineStageManager

    m, v, is_zero_bubble = plan.num_microbatches, len(stages), plan.schedule == _ZERO_BUBBLE
    if v == 1:
        manager = PipelineStageManager(mesh, 0)
        return stages[0], schedule.OneForwardOneBackwardSchedule(manager, num_microbatches=m)
    manager = PipelineStageManager(
        mesh, 0, enable_interleave=True, num_model_chunks=v, use_zbv=is_zero_bubble
    )
    overlaps = dist.get_backend() != "gloo"
    if not is_zero_bubble:
        return nn.ModuleList(stages), schedule.InterleavedSchedule(
            manager, v, num_microbatch=m, overlap_p2p=overlaps
        )
    manager.stage_indices = list(range(v))
    order = PipelineGraph(n_stage=len(plan.ranks.pipeline_ranks), n_micro=m, **_COSTS).get_v_schedule()
    return _Chunks(stages), schedule.ZeroBubbleVPipeScheduler(
        manager, order, v, num_microbatch=m, overlap_p2p=overlaps
    )
