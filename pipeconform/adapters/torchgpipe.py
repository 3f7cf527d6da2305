"""torchgpipe behind the contract: one process, a whole ``nn.Sequential``, the merged output in the caller.

The caller computes the loss, of the whole batch at once (`Capabilities.loss_over`), and calls backward
itself. All stages are on one device here, each with a worker thread of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
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
from pipeconform.adapters.chained import Chained
from pipeconform.adapters.installed import require_release

__all__ = ["TorchGPipe"]

_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(
            name="GPipe", placement=Placement.SINGLE_PROCESS, stages_per_rank=tuple(range(1, 9)), max_ranks=1
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS, Feature.EVAL, Feature.INPUT_GRADIENTS, Feature.TOKENS}
        | {
            Feature.ACCUMULATION,
            Feature.LOSS_KWARGS,
            Feature.FROZEN,
            Feature.FREEZING,
            Feature.LOSS_PARAMETERS,
            Feature.UNUSED_PARAMETERS,
        }
        | {Feature.SHARED_IN_STAGE, Feature.BUFFERS, Feature.DROPOUT, Feature.USER_HOOKS}
        | {Feature.VARYING_SHAPES, Feature.VARYING_MICROBATCHES, Feature.OPTIMIZER, Feature.STATE}
        | {Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING, Feature.LOADING, Feature.RECOMPUTATION}
    ),
    boundary=BoundaryClaim(
        max_tensors=4,
        containers=("tensor", "tuple"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        non_float_tensors=True,
        complex_tensors=True,
    ),
    reductions=("mean", "sum"),
    loss_over="batch",
    world="single_process",
)


class _TorchGPipePipeline:
    """The engine over all stages."""

    def __init__(self, plan: Plan) -> None:
        from torchgpipe import GPipe

        self._loss, self._modules = plan.loss, plan.build_owned()
        self._operate = step_modules(self._modules, plan.optimizer)
        self._engine = GPipe(
            nn.Sequential(*(Chained(self._modules[s]) for s in sorted(self._modules))),
            balance=[1] * len(self._modules),
            devices=[plan.ranks.device] * len(self._modules),
            chunks=plan.num_microbatches,
            checkpoint="always" if plan.recompute else "never",
        )

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        self._engine.chunks = batch.num_microbatches
        self._engine.train(mode is Mode.TRAIN)
        inputs = batch.args if len(batch.args) > 1 else batch.args[0]
        if mode is Mode.EVAL:
            with torch.no_grad():
                return StepResult(output=self._engine(inputs))
        output = self._engine(inputs)
        loss = self._loss.function(output, batch.target, **batch.loss_kwargs)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = tuple(arg.grad for arg in batch.args)
        return StepResult(output=output, loss=loss.detach(), input_gradients=gradients)

    def apply(self, operation: Operation) -> None:
        self._operate(operation)

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        """Do nothing: the worker threads end with each run."""


class TorchGPipe:
    """Adapter for ``torchgpipe.GPipe``."""

    def describe(self) -> Description:
        """The documented features of torchgpipe; raises `Unsupported` if it is not installed."""
        release = require_release("torchgpipe", at_least=(0, 0), extra="torchgpipe")
        return Description(
            name="torchgpipe", version=release, capabilities=_CAPABILITIES, packages=("torchgpipe",)
        )

    def setup_process(self) -> None:
        """Do nothing: the engine has no process-wide state."""

    def build(self, plan: Plan) -> _TorchGPipePipeline:
        return _TorchGPipePipeline(plan)
