"""An adapter for pipeconform: what stands between your pipeline engine and the suite.

It runs as it is, around ToyGPipe, the small engine at the end of this file:

    pipeconform run --impl THIS_FILE.py:MyAdapter --profile smoke

Put your engine in place of the toy wherever a comment says REPLACE, and run again. Everything an
adapter can claim, return and refuse is described in pipeconform/adapter.py, claims.py and contract/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    Mode,
    Operation,
    Plan,
    ScheduleClaim,
    StepResult,
    TensorSpec,
    module_gradients,
    module_state,
    step_modules,
)


class MyAdapter:
    """Says what the engine claims, and builds it. Made once per rank process, without arguments."""

    def describe(self) -> Description:
        """What the engine is and claims; must not start anything."""
        # REPLACE. What is claimed is judged; what is not claimed is reported as "not claimed", never
        # as passed. Begin with few claims and add one after the other.
        return Description(
            name="toy GPipe",
            version="1.0",
            capabilities=Capabilities(
                # family: pipeconform's name of the schedule; its order and memory are judged by it
                schedules=(ScheduleClaim(name="GPipe", family="gpipe", stages_per_rank=(1,), max_ranks=8),),
                features=frozenset(
                    {
                        Feature.OUTPUTS,  # run() returns the output of the last stage
                        Feature.MICROBATCH_LOSSES,  # and one loss per microbatch
                        Feature.EVAL,  # forward only, without gradients
                        Feature.ACCUMULATION,  # steps without zero_grad in between add up
                        Feature.OPTIMIZER,  # apply(OptimizerStep())
                        Feature.STATE,  # state() shows parameters and buffers
                    }
                ),
                boundary=BoundaryClaim(dtypes=("float64", "float32")),  # one tensor between stages
                scale=GradientScale(at="loss"),  # a mean loss is divided by m before backward
            ),
        )

    def setup_process(self) -> None:
        """Called once per rank process: your engine's own global set-up, if any."""

    def build(self, plan: Plan) -> MyPipeline:
        """Build this rank's part; called on every rank."""
        return MyPipeline(plan)


class MyPipeline:
    """A built pipeline, as one rank sees it."""

    def __init__(self, plan: Plan) -> None:
        self._modules = plan.build_owned()  # {stage: module}, on this rank's device
        self._apply = step_modules(self._modules, plan.optimizer)  # zero_grad and optimizer.step()
        (stage,) = self._modules  # exactly one, as claimed by stages_per_rank
        ranks, boundaries = plan.ranks.pipeline_ranks, plan.boundaries()
        # REPLACE: make your engine from the plan.
        self._engine = ToyGPipe(
            self._modules[stage],
            before=ranks[stage - 1] if stage > 0 else None,
            after=ranks[stage + 1] if stage + 1 < len(ranks) else None,
            group=plan.ranks.pipeline_group,
            arriving=boundaries[stage - 1].tensors[0] if stage > 0 else None,
            loss=plan.loss.function,
            mean=plan.loss.reduction == "mean",
        )

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """One step. Only the first stage's rank has true inputs, only the last one's true targets."""
        if batch.target.shape[batch.batch_dim] % batch.num_microbatches:
            raise ValueError("the batch does not divide into equal microbatches")
        for module in self._modules.values():
            module.train(mode is Mode.TRAIN)
        # REPLACE: the whole batch is in batch.args and batch.target, or take it already split.
        inputs = [microbatch.args[0] for microbatch in batch.microbatches]
        targets = [microbatch.target for microbatch in batch.microbatches]
        outputs, losses = self._engine.step(inputs, targets, train=mode is Mode.TRAIN)
        if not outputs:
            return StepResult()  # outputs and losses are on the last stage's rank only
        return StepResult(output=torch.cat(outputs, dim=batch.batch_dim), losses=losses or None)

    def apply(self, operation: Operation) -> None:
        """Carry out ZeroGrad or OptimizerStep, between steps."""
        self._apply(operation)

    def owned(self) -> dict[int, nn.Module]:
        """The modules this rank trains."""
        return self._modules

    def gradients(self) -> dict[int, dict[str, torch.Tensor | None]]:
        """Per stage, by the names that the parameters had when the stage was built."""
        return module_gradients(self._modules)

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        """Per stage, parameters and buffers by the same names."""
        return module_state(self._modules)

    def close(self) -> None:
        """Free what the engine holds; the process groups stay."""


class ToyGPipe:
    """REPLACE: all forwards, then all backwards; one stage per rank, blocking sends and receives."""

    def __init__(
        self,
        stage: nn.Module,
        *,
        before: int | None,
        after: int | None,
        group: dist.ProcessGroup | None,
        arriving: TensorSpec | None,
        loss: Callable[..., torch.Tensor],
        mean: bool,
    ) -> None:
        self._stage, self._before, self._after, self._group = stage, before, after, group
        self._arriving, self._loss, self._mean = arriving, loss, mean

    def step(
        self, inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], *, train: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return outputs and losses per microbatch on the last rank, nothing on the others."""
        taken, given, losses = [], [], []
        with torch.set_grad_enabled(train):
            for own, target in zip(inputs, targets, strict=True):
                x = own if self._before is None else self._receive_activation(train)
                y = self._stage(x)
                if self._after is not None:
                    dist.send(y.detach(), dst=self._after, group=self._group)
                elif train:
                    losses.append(self._loss(y, target))
                taken.append(x)
                given.append(y)
        for k in range(len(given) if train else 0):
            if self._after is not None:
                gradient = torch.empty_like(given[k])
                dist.recv(gradient, src=self._after, group=self._group)
                torch.autograd.backward(given[k], gradient)
            else:
                torch.autograd.backward(losses[k] / len(losses) if self._mean else losses[k])
            if self._before is not None:
                sent = taken[k].grad
                assert sent is not None
                dist.send(sent, dst=self._before, group=self._group)
        last = self._after is None
        return [y.detach() for y in given if last], [loss.detach() for loss in losses]

    def _receive_activation(self, train: bool) -> torch.Tensor:
        assert self._arriving is not None
        x = torch.empty(self._arriving.shape, dtype=self._arriving.dtype)
        dist.recv(x, src=self._before, group=self._group)
        return x.requires_grad_(train)
