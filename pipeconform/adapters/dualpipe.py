"""DeepSeek's DualPipe and DualPipeV behind the contract.

Under DualPipe a rank has a stage of each of two directions, and halves of a batch enter at both ends: outputs and
losses of the first half are the last rank's, those of the second the first rank's. Every stage is on two ranks, and its
gradient is the sum of both, which the user forms. The loss is not divided: its sum over microbatches is differentiated.
All messages have one list of shapes and one dtype, which are set for the process.

Modules may leave weight gradients to the engine's store; the contract's do not, so that its weight parts find nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
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
    Microbatch,
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
from pipeconform.adapters.without_cuda import run_on
from pipeconform.errors import Unsupported

__all__ = ["DualPipe", "DualPipeDefault"]

_V = "DualPipeV"
_TWO_DIRECTIONS = ScheduleClaim(
    name="DualPipe",
    family="dualpipe",
    placement=Placement.MIRROR,
    min_ranks=2,
    ranks_even=True,
    min_microbatches_per_rank=2,
    microbatches=MicrobatchRule.EVEN,
    split_backward=True,
    split_weights="deferred",
    # two ranks have a stage, each with half of the microbatches
    lacks=frozenset({Feature.BUFFERS, Feature.DROPOUT}),
)
_ONE_V = ScheduleClaim(
    name=_V,
    family="dualpipe_v",
    placement=Placement.V,
    stages_per_rank=(2,),
    min_ranks=2,
    min_microbatches_per_rank=2,
    split_backward=True,
    split_weights="deferred",
    takes_placement=False,
)
_FEATURES = frozenset(
    {Feature.OUTPUTS, Feature.MICROBATCH_LOSSES, Feature.EVAL, Feature.EVAL_LOSSES, Feature.TOKENS}
    | {Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE, Feature.LOADING, Feature.BATCH_DIM}
    | {Feature.SHARED_IN_STAGE, Feature.UNUSED_PARAMETERS, Feature.FROZEN, Feature.FREEZING, Feature.BUFFERS}
    | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
    | {Feature.VARYING_MICROBATCHES, Feature.LOSS_PARAMETERS}
)


class _DualPipePipeline:
    """One rank's two stages and the engine for them; `owners` are the two ranks that have them, None if it is one."""

    def __init__(self, plan: Plan, owners: dist.ProcessGroup | None, *, returns_outputs: bool) -> None:
        import dualpipe

        run_on(plan.ranks.device, *_modules())
        rank, size = plan.ranks.pipeline_rank, len(plan.ranks.pipeline_ranks)
        assert rank is not None, "others are bystanders"
        self._is_v, self._owners, self._returns_outputs = plan.schedule == _V, owners, returns_outputs
        self._loss, self._modules = plan.loss, plan.build_owned()
        last = len(plan.stages) - 1
        edge = plan.boundaries()[0].tensors
        dualpipe.set_p2p_tensor_shapes([one.shape for one in edge])
        dualpipe.set_p2p_tensor_dtype(edge[0].dtype)
        engine = dualpipe.DualPipeV if self._is_v else dualpipe.DualPipe
        self._engine = engine(
            (self._modules[rank], self._modules[last - rank]),
            batch_dim=plan.batch_dim,
            process_group=plan.ranks.pipeline_group,
        )
        self._is_first, self._is_last = rank == 0, rank == size - 1
        self.apply = step_modules(self._modules, plan.optimizer)

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        trains = mode is Mode.TRAIN
        self._engine.train(trains)
        m, half = batch.num_microbatches, batch.num_microbatches // 2
        entering, leaving = self._halves(range(m), half)
        dim, parts = batch.batch_dim, batch.microbatches
        given: dict[str, Any] = {}
        if leaving:
            labels = [torch.cat([parts[k].target for k in leaving], dim=dim)]
            given = {"criterion": self._criterion, "labels": labels}
        before = self._set_apart() if trains and self._owners is not None else {}
        with torch.set_grad_enabled(trains):
            losses, output = self._engine.step(
                *_joined([parts[k] for k in entering], dim=dim),
                num_chunks=m,
                return_outputs=self._returns_outputs,
                **given,
            )
        for parameter, earlier in before.items():
            self._add_up(parameter, earlier)
        if not leaving:
            return StepResult()
        return StepResult(
            output=output, losses=list(losses.detach()), microbatches=None if self._is_v else leaving
        )

    def _halves(self, every: range, half: int) -> tuple[range, range]:
        """The microbatches that enter on this rank, and those whose outputs leave on it."""
        if self._is_v:
            return (every, every) if self._is_first else (range(0), range(0))
        first, second = every[:half], every[half:]
        if self._is_first:
            return first, second
        return (second, first) if self._is_last else (range(0), range(0))

    def _criterion(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self._loss.function(output, target)

    def _set_apart(self) -> dict[nn.Parameter, torch.Tensor | None]:
        """Take the gradients of earlier steps away: adding up the owners' once more would double them."""
        parameters = [p for s in sorted(self._modules) for p in self._modules[s].parameters()]
        before = {p: p.grad for p in parameters if p.requires_grad}
        for parameter in before:
            parameter.grad = None
        return before

    def _add_up(self, parameter: nn.Parameter, earlier: torch.Tensor | None) -> None:
        """The sum of both owners' gradients, and of earlier steps'; none if neither owner has one."""
        has_one = torch.tensor([float(parameter.grad is not None)], device=parameter.device)
        dist.all_reduce(has_one, group=self._owners)
        if not has_one.item():
            parameter.grad = earlier
            return
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=self._owners)
        if earlier is not None:
            parameter.grad += earlier

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        """Destroy the group of the two owners."""
        if self._owners is not None:
            dist.destroy_process_group(self._owners)
            self._owners = None


class DualPipe:
    """Adapter for ``dualpipe.DualPipe`` and ``dualpipe.DualPipeV``, with outputs that are asked for."""

    returns_outputs = True
    """Whether outputs are asked for; if not, the engine frees what a stage returned once it is sent."""

    def describe(self) -> Description:
        """The documented features of both; raises `Unsupported` if they are not installed."""
        release = require_release("dualpipe", at_least=(1, 0), remedy="pip install dualpipe")
        claims = Capabilities(
            schedules=(_TWO_DIRECTIONS, *([_ONE_V] if has_file("dualpipe", "dualpipev.py") else [])),
            features=_FEATURES if self.returns_outputs else _FEATURES - {Feature.OUTPUTS},
            boundary=BoundaryClaim(
                max_tensors=3,
                containers=("tensor", "tuple"),
                dtypes=("float32", "float64", "bfloat16"),
                differ=False,
            ),
            scale=GradientScale(at="none", input_gradients_scaled=False),
            reductions=("mean", "sum"),
            sub_groups=True,
            patience=10.0,
        )
        return Description(name="dualpipe", version=release, capabilities=claims, packages=("dualpipe",))

    def setup_process(self) -> None:
        """Import the engine."""
        import dualpipe  # noqa: F401 - so that the first pipeline is built as fast as the others

    def build(self, plan: Plan) -> _DualPipePipeline | Bystander:
        """Build on this rank.

        Raises:
            Unsupported: there is no pair of stages for every rank, which is how the engine takes them.
        """
        members, rank = plan.ranks.pipeline_ranks, plan.ranks.pipeline_rank
        wanted = 2 * len(members) if plan.schedule == _V else len(members)
        if len(plan.stages) != wanted:
            raise Unsupported(f"{len(plan.stages)} stages on {len(members)} ranks, not {wanted}")
        if plan.schedule == _V:
            return Bystander() if rank is None else self._built(plan, None)
        pairs = [dist.new_group([a, b]) for a, b in zip(members, reversed(members), strict=True) if a < b]
        if rank is None:
            return Bystander()
        # else one rank may have raised, and gone, while another still connects
        dist.barrier(group=plan.ranks.pipeline_group)
        return self._built(plan, pairs[min(rank, len(members) - 1 - rank)])

    def _built(self, plan: Plan, owners: dist.ProcessGroup | None) -> _DualPipePipeline:
        return _DualPipePipeline(plan, owners, returns_outputs=self.returns_outputs)


class DualPipeDefault(DualPipe):
    """The same as it is called by default: outputs are not asked for, and freed."""

    returns_outputs = False


def _modules() -> list[Any]:
    """The engine's modules that make tensors."""
    names = ("comm", "dualpipe", "dualpipev")
    return [import_module(f"dualpipe.{one}") for one in names if has_file("dualpipe", f"{one}.py")]


def _joined(parts: Sequence[Microbatch], *, dim: int) -> tuple[torch.Tensor, ...]:
    """The inputs of several microbatches as one batch, which the engine splits again."""
    return tuple(torch.cat(one, dim=dim) for one in zip(*(part.args for part in parts), strict=True))
