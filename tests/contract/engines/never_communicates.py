"""An implementation that pipelines nothing: every rank computes the whole model, and shows its own part of it.

It is the reference but for its messages. What a stage needs of one on another rank, a rank computes by itself, on
stages of its own making that tell no recorder; inputs and targets are said to be consumed everywhere. Schedules,
orders, placement and values are thus right on every rank, and nothing ever crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline
from pipeconform.reference_impl.link import Link
from pipeconform.reference_impl.runtime import Step, Work
from pipeconform.reference_impl.stage import Stage, hand_over
from torch import Tensor, nn

from pipeconform.adapter import (
    Batch,
    Bystander,
    Description,
    Feature,
    Mode,
    Operation,
    Plan,
    StepResult,
    step_modules,
)

UNCLAIMED = {
    Feature.GRADIENT_NORM,
    Feature.SHARED_ACROSS_RANKS,
    Feature.SHARED_ACROSS_STAGES,
    Feature.STAGE_OPERATIONS,
    Feature.DROPOUT,
}
"""What ranks cannot have without each other, or would have to be written for."""


class Elsewhere:
    """The stages of other ranks, computed here when something of theirs is needed."""

    def __init__(self, modules: Mapping[int, nn.Module], *, num_stages: int) -> None:
        self.modules, self.last = modules, num_stages - 1
        self.stages = {s: Stage(module, index=s) for s, module in modules.items()}


class LocalStep(Step):
    """A step whose messages are computations."""

    elsewhere: Elsewhere
    _handed: dict[tuple[int, int], Any]
    _returned: dict[tuple[int, int], Sequence[Tensor | None]]
    _ones: dict[int, Tensor]

    def run(self, actions: Any) -> Any:
        self._handed, self._returned, self._ones = {}, {}, {}
        return super().run(actions)

    def _expect(self, due: Any) -> None:
        """Nothing comes."""

    def send_output(self, s: int, k: int) -> None:
        output = self._handed[s, k] = self.outputs.pop((s, k))
        self._expect_gradient(s, k, output)

    def receive_input(self, s: int, k: int) -> None:
        value = self.inputs[s, k] = self._output_of(s - 1, k)
        self._differentiable[s, k] = any(leaf.requires_grad for leaf in _leaves(value))

    def send_gradient(self, s: int, k: int) -> None:
        if self._differentiable.pop((s, k)):
            self._returned[s, k] = self.input_gradients.pop((s, k))

    def receive_gradient(self, s: int, k: int) -> None:
        if self._differentiable.pop((s + 1, k)):
            self.output_gradients[s, k] = self._gradient_of(s + 1, k)

    def _output_of(self, s: int, k: int) -> Any:
        """What stage s hands over."""
        if (s, k) not in self._handed:
            given = self.work.inputs[k] if s == 0 else self._output_of(s - 1, k)
            kwargs, last = self.work.kwargs.get(s), s == self.elsewhere.last
            output = self.elsewhere.stages[s].forward(
                k,
                given,
                kwargs[k] if kwargs else {},
                differentiate=self.work.loss is not None,
                boundary=not last,
            )
            if last and self.work.loss is not None:
                loss = self.work.loss(output, self.work.targets[k])
                self.elsewhere.stages[s].end_in(k, loss / self.work.divisor)
                self._ones[k] = torch.ones_like(loss)
            self._handed[s, k] = output if last else hand_over(output)
        return self._handed[s, k]

    def _gradient_of(self, s: int, k: int) -> Sequence[Tensor | None]:
        """The gradient of the input of stage s."""
        if (s, k) not in self._returned:
            self._output_of(s, k)
            last = s == self.elsewhere.last
            gradients = [self._ones[k]] if last else self._gradient_of(s + 1, k)
            self._returned[s, k] = self.elsewhere.stages[s].backward(k, gradients)
        return self._returned[s, k]


def _leaves(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


class SilentLink(Link):
    """Goes nowhere."""

    def warm_up(self, placement: Any, *, position: int) -> None:
        """No connection is needed."""


class LocalPipeline(ReferencePipeline):
    """All stages on this rank, of which it shows its own."""

    link_type: ClassVar[type[Link]] = SilentLink
    step_type: ClassVar[type[Step]] = LocalStep

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.elsewhere = Elsewhere(self.make_foreign(), num_stages=len(plan.stages))
        self._operate_elsewhere = step_modules(self.elsewhere.modules, plan.optimizer)

    def make_foreign(self) -> dict[int, nn.Module]:
        """The stages that other ranks own, deaf and dumb."""
        plan = self.plan
        found = {s: build() for s, build in enumerate(plan.stages) if s not in plan.owned_stages()}
        for module in found.values():
            module.recorder = module.timeline = module.intruder = None
        return found

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        owned = self.modules
        self.modules = {**owned, **self.elsewhere.modules}  # for inputs and keyword arguments of all of them
        try:
            return super().make_work(mode, batch)
        finally:
            self.modules = owned

    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        assert isinstance(step, LocalStep)
        step.elsewhere = self.elsewhere
        return step

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        with ExitStack() as stack:
            for stage in self.elsewhere.stages.values():
                stack.enter_context(stage.step(training=mode is Mode.TRAIN))
            return super().run(mode, batch)

    def apply(self, operation: Operation) -> None:
        super().apply(operation)
        self._operate_elsewhere(operation)


class NeverCommunicates(ReferenceAdapter):
    """The attack: stages of other ranks are built from the plan."""

    pipeline = LocalPipeline

    def describe(self) -> Description:
        """The reference's claims, and that every rank is to be given everything."""
        honest = super().describe()
        claims = replace(
            honest.capabilities,
            schedules=tuple(one for one in honest.capabilities.schedules if one.name in ("GPipe", "1F1B")),
            features=honest.capabilities.features - UNCLAIMED,
            inputs_consumed_by="all",
            targets_consumed_by="all",
            tracing=None,
            data_parallel=None,
            tensor_parallel=None,
        )
        return replace(honest, name="never-communicates", capabilities=claims)

    def build(self, plan: Plan) -> Any:
        return Bystander() if plan.ranks.pipeline_rank is None else super().build(plan)
