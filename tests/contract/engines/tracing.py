"""A small engine that traces its stages: graphs compute in their place, and no module is called in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    Mode,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)

CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(
            name="GPipe",
            placement=Placement.SINGLE_PROCESS,
            stages_per_rank=(1, 2, 3),
            max_ranks=1,
            family="gpipe",
        ),
    ),
    features=frozenset(
        {
            Feature.OUTPUTS,
            Feature.EVAL,
            Feature.ACCUMULATION,
            Feature.OPTIMIZER,
            Feature.STATE,
            Feature.FROZEN,
        }
    ),
    boundary=BoundaryClaim(max_tensors=2, containers=("tensor", "tuple"), dtypes=("float64", "float32")),
    world="single_process",
    computed_by="graphs",
)


def _graph_of(module: nn.Module, args: tuple[Any, ...]) -> Callable[..., Any]:
    def called(parameters: dict[str, torch.Tensor], inputs: tuple[Any, ...]) -> Any:
        return functional_call(module, parameters, inputs)

    # it computes as it traces, and a stage may change what it is given
    return make_fx(called)(dict(module.named_parameters()), tuple(one.clone() for one in args))


class TracingPipeline:
    """Every stage traced with the first microbatch that it is given, and run for each microbatch in turn."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.built = plan, plan.build_owned()
        self._graphs: dict[int, Callable[..., Any]] = {}
        self.apply = step_modules(self.built, plan.optimizer)

    def owned(self) -> dict[int, nn.Module]:
        return self.built

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        outputs, losses = [], []
        with torch.set_grad_enabled(mode is Mode.TRAIN):
            for one in batch.microbatches:
                outputs.append(self.through(one.args))
                if mode is Mode.TRAIN:
                    losses.append(self.plan.loss.function(outputs[-1], one.target))
                    self.scaled(losses[-1], batch.num_microbatches).backward()
        output = torch.cat([one.detach() for one in outputs])
        return StepResult(output=output, loss=torch.stack(losses).mean().detach() if losses else None)

    def scaled(self, loss: torch.Tensor, num_microbatches: int) -> torch.Tensor:
        return loss / num_microbatches

    def through(self, args: tuple[Any, ...]) -> Any:
        for s, module in self.built.items():
            if s not in self._graphs:
                self._graphs[s] = _graph_of(module, args)
            found = self._graphs[s](dict(module.named_parameters()), args)
            args = found if isinstance(found, tuple) else (found,)
        return args[0]

    def gradients(self) -> dict[int, dict[str, torch.Tensor | None]]:
        return module_gradients(self.built)

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        return module_state(self.built)

    def close(self) -> None:
        """Do nothing."""


class Tracing:
    pipeline = TracingPipeline

    def describe(self) -> Description:
        return Description(name="tracing", version="1.0", capabilities=CAPABILITIES)

    def setup_process(self) -> None:
        """Do nothing."""

    def build(self, plan: Plan) -> TracingPipeline:
        return self.pipeline(plan)


class _Undivided(TracingPipeline):
    def scaled(self, loss: torch.Tensor, num_microbatches: int) -> torch.Tensor:
        return loss


class Undivided(Tracing):
    """Adds up the gradients of microbatches that it is to average."""

    pipeline = _Undivided


class _Enlarged(TracingPipeline):
    def through(self, args: tuple[Any, ...]) -> Any:
        return super().through(args) * 1.5


class Enlarges(Tracing):
    """Hands back outputs that are half as large again."""

    pipeline = _Enlarged
