"""The pipelines of Hugging Face's accelerate behind the contract.

`prepare_pippy` exports a model, splits it before the submodules that its user names, makes one stage on each rank and
replaces the model's forward; it evaluates, and does not train. The stages of a plan are put into one model, which is
split between them. What a rank then runs is made of the exported operations, and its parameters are the stages'.

The engine makes most batches larger before it cuts them, unless there are as many samples as microbatches, and much of
`Accelerate` is blocked by that. `AccelerateUnpadded` is the same engine without this padding, and
`AccelerateGathered` that one with ``gather_output``.

Not claimed: training, which the engine does not have; another number or size of microbatches than it was built with,
since both are fixed by the export; several tensors between stages; keyword arguments of stages, because only the first
one is given any; points by ``"auto"``, which counts sizes that the models here do not reach.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    LoadState,
    Mode,
    Operation,
    Plan,
    ScheduleClaim,
    StepResult,
    TracingClaim,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.whole_world import require_whole_world

__all__ = ["Accelerate", "AccelerateGathered", "AccelerateUnpadded"]

_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="GPipe", family="gpipe", min_ranks=2, trains=False, takes_placement=False),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.EVAL, Feature.STATE, Feature.LOADING, Feature.TOKENS}
        | {Feature.SHARED_IN_STAGE, Feature.BUFFERS}
    ),
    boundary=BoundaryClaim(dtypes=("float64", "float32", "bfloat16", "float16")),
    tracing=TracingClaim(splits=("points",), after=False),
)


class _Chain(nn.Module):
    """The stages one after the other, under the names that a whole model gives them."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> Any:
        for stage in self.stages:
            x = stage(x)
        return x


class _AcceleratePipeline:
    """One rank's part of the engine's pipeline."""

    def __init__(self, plan: Plan, adapter: Accelerate) -> None:
        from accelerate import PartialState, inference
        from accelerate.utils import pad_input_tensors

        inference.pad_input_tensors = pad_input_tensors if adapter.pads else _unchanged
        ranks = plan.ranks
        os.environ.update(
            RANK=str(ranks.rank),
            LOCAL_RANK=str(ranks.rank),
            WORLD_SIZE=str(ranks.world_size),
            LOCAL_WORLD_SIZE=str(ranks.world_size),
        )
        PartialState._reset_state()
        PartialState(cpu=ranks.device.type == "cpu")
        args, kwargs = (plan.example(), None) if plan.split is None else plan.split.example()
        if plan.split is None:
            model: nn.Module = _Chain([build() for build in plan.stages])
            points = [f"stages.{s}" for s in range(1, len(plan.stages))]
        else:
            model, points = plan.model(), [point.module for point in plan.split.points]
        (self._stage,) = plan.owned_stages()
        self._model = inference.prepare_pippy(
            adapter.ready(model),
            split_points=points,
            example_args=args,
            example_kwargs=kwargs,
            num_chunks=plan.num_microbatches,
            gather_output=adapter.gathers,
        )
        self._part = self._model.pippy_stage._stage.submod
        self._within = f"stages.{self._stage}"
        self._prefix = "" if plan.split is None else self._within

    def owned(self) -> Mapping[int, nn.Module]:
        return {self._stage: self._part}

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        with torch.no_grad():
            return StepResult(output=self._model(*batch.args))

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, LoadState):
            with torch.no_grad():
                for name, value in self._users().items():
                    value.copy_(operation.state[self._stage][name])

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        own = self._model.get_submodule(self._within).named_parameters(self._prefix)
        return {self._stage: {name: parameter.grad for name, parameter in own}}

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        run = {**dict(self._part.named_parameters()), **dict(self._part.named_buffers())}
        drop = "" if self._prefix else f"{self._within}."
        users = self._users()
        # what evaluation does not read, such as a count of batches, is in no exported stage
        return {self._stage: {name: run.get(drop + name, value) for name, value in users.items()}}

    def _users(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers of the user's model that belong to this rank's stage."""
        own = self._model.get_submodule(self._within)
        return dict((*own.named_parameters(self._prefix), *own.named_buffers(self._prefix)))

    def close(self) -> None:
        self._model = None


class Accelerate:
    """Adapter for ``accelerate.prepare_pippy`` as it is called by default: the last rank has the outputs."""

    name, pads, gathers = "accelerate", True, False

    def describe(self) -> Description:
        """What the engine documents; raises `Unsupported` if it is not installed."""
        release = require_release("accelerate", at_least=(1, 0), remedy="pip install accelerate")
        return Description(
            name=self.name,
            version=release,
            built_on="torch.distributed.pipelining",
            capabilities=replace(_CAPABILITIES, outputs_on="all" if self.gathers else "last_stage"),
            packages=("accelerate.inference",),
        )

    def setup_process(self) -> None:
        """Do nothing: the engine's state is set up anew for every pipeline."""

    def ready(self, model: nn.Module) -> nn.Module:
        """A model as it is to be exported, which decides about its mode for good."""
        return model.eval()

    def build(self, plan: Plan) -> _AcceleratePipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world, of which the engine makes it.
        """
        require_whole_world(plan.ranks)
        return _AcceleratePipeline(plan, self)


class AccelerateUnpadded(Accelerate):
    """The same engine, which cuts batches as they are."""

    name, pads = "accelerate-unpadded", False


class AccelerateGathered(AccelerateUnpadded):
    """The same, whose outputs are copied to all ranks."""

    name, gathers = "accelerate-gathered", True


def _unchanged(values: Any, *args: Any) -> Any:
    return values
