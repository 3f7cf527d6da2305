"""InternEvo's pipeline schedulers behind the contract.

A scheduler calls a stage with the fields of a microbatch, by name, and behind the first one with what the stage before
returned: one tensor, of the dtype that the configuration gives the model. It divides the loss by m, and returns the sum
and the merged output. It cuts a batch by the number of samples in a microbatch, which stands in the configuration.

The package of the index cannot be imported, because it lacks a folder. A checkout can, with stand-ins for what its data
sets and models ask for, which the schedulers do not use. Without CUDA the engine computes on the CPU by itself, but for
a call that waits for the device after every message.

Not claimed: saving. The engine saves the states of its own optimizers with ZeRO only, and here torch's optimizer steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
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
    GradientScale,
    MicrobatchRule,
    Mode,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import has_file, require_release
from pipeconform.adapters.stand_ins import standing_in_for
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.errors import Unsupported

__all__ = ["InternEvo"]

_CHECKOUT = "pip install --no-deps git+https://github.com/InternLM/InternEvo, and what it then lacks"
_NOT_USED = ("datasets", "datasets.distributed", "PIL", "transformers")
"""What data sets and models of the engine import."""
_BOUNDARY = BoundaryClaim(max_tensors=1, containers=("tensor",), dtypes=("float32", "bfloat16"))
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="1F1B", family="one_f_one_b", min_ranks=2),
        ScheduleClaim(
            name="Interleaved1F1B",
            family="interleaved_one_f_one_b_megatron",
            stages_per_rank=(2, 3, 4),
            min_ranks=2,
            min_microbatches_per_rank=1,
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
            takes_placement=False,
        ),
        # only the engine's own linear layers leave their weight gradients to its store
        ScheduleClaim(name="ZB-H1", family="one_f_one_b", min_ranks=2),
        ScheduleClaim(
            name="ZBVZeroBubble",
            placement=Placement.V,
            stages_per_rank=(2,),
            min_ranks=2,
            min_microbatches_per_rank=2,
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
            takes_placement=False,
            boundary=replace(_BOUNDARY, differ=False),
            lacks=frozenset({Feature.VARYING_SHAPES}),
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS, Feature.EVAL, Feature.EVAL_LOSSES, Feature.TOKENS}
        | {Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE, Feature.LOADING}
        | {Feature.LOSS_PARAMETERS, Feature.SHARED_IN_STAGE, Feature.UNUSED_PARAMETERS, Feature.BUFFERS}
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
        | {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}
    ),
    boundary=_BOUNDARY,
    scale=GradientScale(at="loss"),
)


class _Stage(nn.Module):
    """A stage in the engine's form: fields by name, and in front of them what the stage before returned."""

    def __init__(self, inner: nn.Module, *, num_inputs: int) -> None:
        super().__init__()
        self.inner, self._names = inner, [f"x{k}" for k in range(num_inputs)]
        self.returns_tuple = False

    def forward(self, received: torch.Tensor | None = None, **fields: torch.Tensor) -> Any:
        given = [fields[name] for name in self._names] if received is None else [received]
        found = self.inner(*given)
        self.returns_tuple = isinstance(found, tuple)
        return found


class _InternEvoPipeline:
    """One rank's stages and their scheduler."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._modules = plan, plan.build_owned()
        self.apply = step_modules(self._modules, plan.optimizer)
        self._engine: Any = None
        self._scheduler: Any = None
        self._context = _configured(plan)

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        samples = len(batch.args[0])
        self._context.config.data.micro_bsz = samples // batch.num_microbatches
        if self._scheduler is None:
            self._make(num_inputs=len(batch.args))
        trains = mode is Mode.TRAIN
        (self._engine.train if trains else self._engine.eval)()
        fields = {f"x{k}": value for k, value in enumerate(batch.args)}
        with nullcontext() if trains else torch.no_grad():
            output, _, loss = self._scheduler.forward_backward_step(
                self._engine, iter([(fields, batch.target)]), forward_only=not trains
            )
        return StepResult(output=output, loss=None if loss is None else loss.squeeze())

    def _make(self, *, num_inputs: int) -> None:
        """The scheduler, and the engine that it drives."""
        from internlm.core import scheduler
        from internlm.core.engine import Engine
        from internlm.solver.optimizer.base_optimizer import BaseOptimizer

        plan, v = self._plan, len(self._modules)
        stages = [_Stage(module, num_inputs=num_inputs) for module in self._modules.values()]
        self._last = stages[-1]
        # What steps is torch's: the engine only runs backwards through its optimizer, and switches a flag of it.
        optimizer = BaseOptimizer(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0))
        optimizer.skip_grad_reduce = False
        self._engine = Engine(
            model=nn.ModuleList(stages) if v > 1 else stages[0],
            optimizer=optimizer,
            criterion=self._measured,
        )
        options: dict[str, Any] = {"num_microbatches": plan.num_microbatches, "scheduler_hooks": []}
        if plan.schedule == "ZBVZeroBubble":  # it does not send shapes
            (edge,) = plan.boundaries()[0].tensors
            options["tensor_shape"] = (self._context.config.data.micro_bsz, *edge.shape[1:])
        if v > 1:
            options["num_chunks"] = v
        if plan.schedule == "Interleaved1F1B":
            options["communication_overlap"] = True  # the engine's launcher refuses to do without
        made = {
            "1F1B": scheduler.PipelineScheduler,
            "Interleaved1F1B": scheduler.InterleavedPipelineScheduler,
            "ZB-H1": scheduler.ZeroBubblePipelineScheduler,
            "ZBVZeroBubble": scheduler.ZeroBubblePipelineVShapeScheduler,
        }[plan.schedule]
        self._scheduler = made(**options)
        self._scheduler.pre_processing(self._engine)

    def _measured(self, *output_and_target: Any) -> torch.Tensor:
        """The loss; the engine hands it the parts of a tuple one by one."""
        *output, target = output_and_target
        whole = tuple(output) if self._last.returns_tuple else output[0]
        return self._plan.loss.function(whole, target)

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        self._engine = self._scheduler = None


class InternEvo:
    """Adapter for ``internlm.core.scheduler``."""

    def describe(self) -> Description:
        """The schedulers' documented features; raises `Unsupported` if the engine cannot be imported."""
        release = require_release("InternEvo", at_least=(0, 5), remedy=_CHECKOUT)
        if not has_file("internlm", "core", "parallel", "comm", "utils.py"):
            raise Unsupported(f"InternEvo {release} of the package index cannot be imported: {_CHECKOUT}")
        return Description(
            name="internevo",
            version=release,
            capabilities=_CAPABILITIES,
            packages=("internlm.core.scheduler",),
        )

    def setup_process(self) -> None:
        """Import the engine, and have it compute where the run does."""
        with standing_in_for(*_NOT_USED):
            import internlm.core.scheduler  # noqa: F401 - the first pipeline is built as fast as others
        if dist.get_backend() == "gloo":
            from internlm.accelerator import get_accelerator

            accelerator = get_accelerator()
            accelerator.is_available = lambda: False
            accelerator.synchronize = lambda *_: None

    def build(self, plan: Plan) -> _InternEvoPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world: the engine makes its groups by itself.
        """
        require_whole_world(plan.ranks)
        return _InternEvoPipeline(plan)


def _configured(plan: Plan) -> Any:
    """The engine's context, told of the pipeline, as its launcher tells it."""
    from internlm.core.context import Config, ParallelMode, global_context

    (dtype,) = {one.dtype for boundary in plan.boundaries() for one in boundary.tensors} or {torch.float32}
    mode = {"ZB-H1": "ZBH1", "ZBVZeroBubble": "ZBV"}.get(plan.schedule, "1F1B")
    parallel = {
        "pipeline": {"size": len(plan.ranks.pipeline_ranks), "interleaved_overlap": True, "mode": mode},
        "tensor": {"size": 1, "mode": "mtp"},
        "sequence_parallel": False,
        "expert": {"no_tp": False},
    }
    global_context.load_config(Config({"parallel": parallel, "data": {}, "model": {"dtype": dtype}}))
    ranks = list(plan.ranks.pipeline_ranks)
    group = plan.ranks.pipeline_group or dist.group.WORLD
    for parallel_mode in (ParallelMode.GLOBAL, ParallelMode.PIPELINE):
        global_context._register_dist(plan.ranks.pipeline_rank, len(ranks), group, None, ranks, parallel_mode)
    global_context._global_ranks[ParallelMode.GLOBAL] = dist.get_rank()
    global_context.virtual_pipeline_parallel_size = global_context.virtual_pipeline_parallel_rank = None
    global_context.v_shape = mode == "ZBV"
    return global_context
