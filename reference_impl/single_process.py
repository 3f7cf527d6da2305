"""The reference of another kind: one process, the whole model, the loss over the merged output.

Engines such as torchgpipe and fairscale take an ``nn.Sequential`` and return the output of the whole
batch; the loss, and the backward pass from it, are the caller's. This is the plainest engine of that kind:
every microbatch through every stage, one microbatch after another, then `torch.cat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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

from .microbatches import merge

__all__ = ["SingleProcessPipeline", "SingleProcessReference"]

_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(
            name="GPipe", placement=Placement.SINGLE_PROCESS, stages_per_rank=tuple(range(1, 9)), max_ranks=1
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS, Feature.EVAL}
        | {Feature.INPUT_GRADIENTS, Feature.ACCUMULATION, Feature.KWARGS, Feature.LOSS_KWARGS, Feature.TOKENS}
        | {
            Feature.FROZEN,
            Feature.FREEZING,
            Feature.LOSS_PARAMETERS,
            Feature.RECOMPUTATION,
            Feature.UNUSED_PARAMETERS,
            Feature.SHARED_IN_STAGE,
            Feature.BUFFERS,
        }
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.UNEVEN_BATCHES, Feature.VARYING_MICROBATCHES}
        | {Feature.VARYING_SHAPES, Feature.OPTIMIZER, Feature.STATE}
    ),
    boundary=BoundaryClaim(
        max_tensors=8,
        containers=("tensor", "tuple", "list", "mapping"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        no_grad_tensors=True,
        non_float_tensors=True,
        complex_tensors=True,
    ),
    reductions=("mean", "sum"),
    kwargs_scope="stage",
    loss_over="batch",
    world="single_process",
)


class SingleProcessPipeline:
    """All stages, in one process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.modules = plan.build_owned()
        self._operate = step_modules(self.modules, plan.optimizer)

    def owned(self) -> Mapping[int, nn.Module]:
        """Return every stage."""
        return self.modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Forward over all microbatches; in training, backward from the loss of the merged output."""
        for module in self.modules.values():
            module.train(mode is Mode.TRAIN)
        with torch.set_grad_enabled(mode is Mode.TRAIN):
            output = merge(
                [self._forward(batch, k) for k in range(len(batch.microbatches))], batch_dim=batch.batch_dim
            )
        if mode is Mode.EVAL:
            return StepResult(output=output)
        loss = self.plan.loss.function(output, batch.target, **batch.loss_kwargs)
        self.backward(loss, batch)
        gradients = [arg.grad if isinstance(arg, Tensor) else None for arg in batch.args]
        return StepResult(output=output, loss=loss.detach(), input_gradients=gradients)

    def _forward(self, batch: Batch, k: int) -> object:
        values: object = batch.microbatches[k].args
        for s, module in self.modules.items():
            args = values if isinstance(values, tuple | list) else (values,)
            kwargs = batch.microbatches[k].kwargs.get(s, {})
            if self.plan.recompute:
                values = checkpoint(module, *args, use_reentrant=False, **kwargs)
            else:
                values = module(*args, **kwargs)
        return values

    def backward(self, loss: Tensor, batch: Batch) -> None:
        """Run the backward; the mean over the batch is the mean over its samples already."""
        loss.backward()  # type: ignore[no-untyped-call]

    def apply(self, operation: Operation) -> None:
        """Clear gradients or step the optimizer."""
        self._operate(operation)

    def gradients(self) -> Mapping[int, Mapping[str, Tensor | None]]:
        """Per stage and parameter."""
        return module_gradients(self.modules)

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Per stage: parameters and buffers."""
        return module_state(self.modules)

    def close(self) -> None:
        """Do nothing."""


class SingleProcessReference:
    """Builds single-process pipelines."""

    name: ClassVar[str] = "pipeconform reference, single process"
    pipeline: ClassVar[type[SingleProcessPipeline]] = SingleProcessPipeline

    def describe(self) -> Description:
        """Claim what a caller-side loss over the merged output allows."""
        return Description(name=self.name, version="0.1.0", capabilities=_CAPABILITIES)

    def setup_process(self) -> None:
        """Do nothing."""

    def build(self, plan: Plan) -> SingleProcessPipeline:
        """Build in this process."""
        return self.pipeline(plan)
