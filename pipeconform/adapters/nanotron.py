"""nanotron's pipeline engines behind the contract.

The engine is given one module on every rank, which calls its blocks in order. A block computes on its own rank; on all
others it returns pointers to that rank in the place of tensors. Tensors between blocks have names. The loss is divided
by m, and microbatches are dicts, with pointers on the ranks that do not have the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
    Mode,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import has_file, require_release
from pipeconform.errors import Unsupported

__all__ = ["Nanotron"]

_CHECKOUT = "pip install --no-deps git+https://github.com/huggingface/nanotron, and what it then lacks"
_TRAINED = BoundaryClaim(
    max_tensors=4,
    containers=("tensor", "tuple", "list"),
    dtypes=("float64", "float32", "bfloat16", "float16"),
)
"""Under 1F1B every tensor between stages needs a gradient, says the README of the engine's folder."""
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="GPipe", family="gpipe"),
        ScheduleClaim(name="1F1B", family="one_f_one_b", min_microbatches_per_rank=1, boundary=_TRAINED),
    ),
    features=frozenset(
        {
            Feature.OUTPUTS,
            Feature.EVAL,
            Feature.ACCUMULATION,
            Feature.OPTIMIZER,
            Feature.STATE,
            Feature.LOADING,
        }
        | {
            Feature.TOKENS,
            Feature.SHARED_IN_STAGE,
            Feature.UNUSED_PARAMETERS,
            Feature.BUFFERS,
            Feature.DROPOUT,
        }
        | {Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING, Feature.BATCH_DIM}
        | {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}
    ),
    boundary=replace(_TRAINED, no_grad_tensors=True, non_float_tensors=True),
    scale=GradientScale(at="loss"),
    reductions=("mean",),
    sub_groups=True,
)

_ENGINES = {
    "GPipe": "AllForwardAllBackwardPipelineEngine",
    "1F1B": "OneForwardOneBackwardPipelineEngine",
}


class _Stage(nn.Module):
    """Calls a stage with the tensors that a block gives it by name, and names what it returns."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        returned = self.stage(*(given[name] for name in _names(len(given))))
        values = returned if isinstance(returned, tuple | list) else (returned,)
        return dict(zip(_names(len(values)), values, strict=True))


class _Model(nn.Module):
    """What every rank calls: a block for each stage, and one for the loss beside the last."""

    def __init__(self, stages: Sequence[nn.Module], loss: nn.Module) -> None:
        super().__init__()
        self.stages, self.loss = nn.ModuleList(stages), loss

    def forward(self, target: Any, **values: Any) -> dict[str, Any]:
        for stage in self.stages:
            values = stage(**values)
        (output,) = values.values()
        return {"loss": self.loss(output=output, target=target)["loss"], "output": output}


class _NanotronPipeline:
    """One rank's stage, among the blocks of all."""

    def __init__(self, plan: Plan) -> None:
        from nanotron.parallel.pipeline_parallel import engine, p2p

        self._plan, self._modules = plan, plan.build_owned()
        self.apply = step_modules(self._modules, plan.optimizer)
        self._group = plan.ranks.pipeline_group or dist.group.WORLD
        self._p2p = p2p.P2P(self._group, device=plan.ranks.device)
        self._engine = getattr(engine, _ENGINES[plan.schedule])()
        self._model: nn.Module | None = None

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self._model is None:
            self._model = self._made(num_inputs=len(batch.args))
        self._model.train(mode is Mode.TRAIN)
        given = [self._given(one) for one in batch.microbatches]
        if mode is Mode.TRAIN:
            found = self._engine.train_batch_iter(self._model, self._group, given, len(given), None)
        else:
            found = self._engine.validate_batch_iter(self._model, given, len(given))
        if self._plan.ranks.pipeline_rank != self._plan.last_rank:
            return StepResult()
        output = torch.cat([one["output"] for one in found], dim=batch.batch_dim)
        return StepResult(output=output, loss=torch.stack([one["loss"] for one in found]).sum())

    def _made(self, *, num_inputs: int) -> nn.Module:
        """The model of all blocks; the engine builds those of this rank."""
        from nanotron.parallel.pipeline_parallel.block import PipelineBlock

        plan = self._plan
        counts = [num_inputs, *(len(one.tensors) for one in plan.boundaries()), 1]

        def block(
            takes: Iterable[str], gives: Iterable[str], *, rank: int, builder: Any, **given: Any
        ) -> Any:
            made = PipelineBlock(self._p2p, builder, given, set(takes), set(gives))
            made.build_and_set_rank(rank)
            return made

        def measured(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return plan.loss.function(output, target)

        stages = [
            block(
                _names(counts[s]),
                _names(counts[s + 1]),
                rank=min(owners),
                builder=_Stage,
                stage=self._modules.get(s),
            )
            for s, owners in enumerate(plan.placement)
        ]
        loss = block(["output", "target"], ["loss"], rank=plan.last_rank, builder=lambda: measured)
        return _Model(stages, loss)

    def _given(self, microbatch: Microbatch) -> dict[str, Any]:
        """A microbatch as this rank has it."""
        from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

        plan = self._plan

        def here(value: torch.Tensor, rank: int) -> Any:
            return value if plan.ranks.pipeline_rank == rank else TensorPointer(group_rank=rank)

        names = _names(len(microbatch.args))
        inputs = {
            name: here(value, plan.first_rank) for name, value in zip(names, microbatch.args, strict=True)
        }
        return {**inputs, "target": here(microbatch.target, plan.last_rank)}

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        """Forget the engine's blocks; it holds nothing else."""
        self._model = None


class Nanotron:
    """Adapter for ``nanotron.parallel.pipeline_parallel``."""

    def describe(self) -> Description:
        """The engines' documented features; raises `Unsupported` if nanotron is not installed."""
        release = require_release("nanotron", at_least=(0, 4), remedy=_CHECKOUT)
        if not has_file("nanotron", "logging", "__init__.py"):
            raise Unsupported(f"nanotron {release} of the package index cannot be imported: {_CHECKOUT}")
        return Description(
            name="nanotron",
            version=release,
            capabilities=_CAPABILITIES,
            packages=("nanotron.parallel.pipeline_parallel",),
        )

    def setup_process(self) -> None:
        """Import the engine."""
        import nanotron.parallel.pipeline_parallel.engine  # noqa: F401 - the first pipeline is built as fast as others

    def build(self, plan: Plan) -> _NanotronPipeline | Bystander:
        """Build on this rank."""
        return Bystander() if plan.ranks.pipeline_rank is None else _NanotronPipeline(plan)


def _names(count: int) -> list[str]:
    """The names of the tensors at a boundary, in order."""
    return [f"x{index}" for index in range(count)]
