"""A small engine that only evaluates, and exports its stages: what it runs are not the harness's modules any more."""

from __future__ import annotations

from typing import Any

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
)

CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(
            name="GPipe",
            placement=Placement.SINGLE_PROCESS,
            stages_per_rank=(1, 2, 3),
            max_ranks=1,
            trains=False,
        ),
    ),
    features=frozenset({Feature.OUTPUTS, Feature.EVAL, Feature.STATE, Feature.BUFFERS}),
    boundary=BoundaryClaim(dtypes=("float64", "float32")),
    world="single_process",
    loss_over="batch",
)


class ExportingPipeline:
    """Every stage exported with the example, and run for each microbatch in turn."""

    times = 1
    """How often a stage is run for a microbatch."""

    def __init__(self, plan: Plan) -> None:
        self.built = plan.build_owned()
        self.stages: dict[int, nn.Module] = {}
        args = plan.example()
        for s, module in self.built.items():
            exported = torch.export.export(module.eval(), args)
            self.stages[s] = exported.module()
            args = (self.stages[s](*args).detach(),)

    def owned(self) -> dict[int, nn.Module]:
        return self.stages

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        with torch.no_grad():
            return StepResult(output=torch.cat([self.through(one.args) for one in batch.microbatches]))

    def through(self, args: tuple[Any, ...]) -> Any:
        for stage in self.stages.values():
            for _ in range(self.times):
                found = stage(*args)
            args = (found,)
        return args[0]

    def apply(self, operation: Operation) -> None:
        """Do nothing: no case asks for a step, or loads."""

    def gradients(self) -> dict[int, dict[str, torch.Tensor | None]]:
        return module_gradients(self.built)

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        return module_state(self.built)

    def close(self) -> None:
        """Do nothing."""


class Exporting:
    pipeline = ExportingPipeline

    def describe(self) -> Description:
        return Description(name="exporting", version="1.0", capabilities=CAPABILITIES)

    def setup_process(self) -> None:
        """Do nothing."""

    def build(self, plan: Plan) -> ExportingPipeline:
        return self.pipeline(plan)


class _Twice(ExportingPipeline):
    times = 2


class ComputesTwice(Exporting):
    """Runs each stage twice, which its outputs do not show."""

    pipeline = _Twice
