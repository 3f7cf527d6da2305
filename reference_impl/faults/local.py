"""Faults of a pipeline that does not communicate: ranks compute for themselves what another rank has to send.

What a stage needs from another rank is computed here, on copies of that rank's stages that report to no recorder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeconform.adapter import Batch, Mode, Operation, Plan, StepResult, step_modules
from pipeconform.schedule import Action

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..containers import leaves_of, map_leaves
from ..link import Link
from ..runtime import Due, Key, Step, Work, Yield
from ..stage import Stage, hand_over
from .fault import breaks


class LocalStep(Step):
    """A step whose messages are computations on the stages `elsewhere`, which other ranks own."""

    elsewhere: Mapping[int, Stage]
    _handed: dict[Key, Any]
    _returned: dict[Key, Sequence[Tensor | None]]
    _ones: dict[int, Tensor]

    def run(self, actions: Sequence[Action]) -> Yield:
        """Carry out the actions, beginning without values of other ranks."""
        self._handed, self._returned, self._ones = {}, {}, {}
        return super().run(actions)

    def _expect(self, due: Sequence[Due]) -> None:
        """Expect no message."""

    def send_output(self, s: int, k: int) -> None:
        """Keep the output for the stages behind."""
        output = self._handed[s, k] = self.outputs.pop((s, k))
        self._expect_gradient(s, k, output)

    def receive_input(self, s: int, k: int) -> None:
        """Compute the input."""
        value = self.inputs[s, k] = self._output_of(s - 1, k)
        self._differentiable[s, k] = any(leaf.requires_grad for leaf in leaves_of(value))

    def send_gradient(self, s: int, k: int) -> None:
        """Keep the gradient for the stages before."""
        if self._differentiable.pop((s, k)):
            self._returned[s, k] = self.input_gradients.pop((s, k))

    def receive_gradient(self, s: int, k: int) -> None:
        """Compute the gradient."""
        if self._differentiable.pop((s + 1, k)):
            self.output_gradients[s, k] = self._gradient_of(s + 1, k)

    def _output_of(self, s: int, k: int) -> Any:
        """The output of stage s."""
        if (s, k) not in self._handed:
            given = self.work.inputs[k] if s == 0 else self._output_of(s - 1, k)
            kwargs, stage, loss = self.work.kwargs.get(s), self.elsewhere[s], self.work.loss
            output = stage.forward(
                k,
                given,
                kwargs[k] if kwargs else {},
                differentiate=loss is not None,
                boundary=s != self._last,
            )
            if s == self._last and self.work.measured is not None:
                self._losses[k] = self.work.measured(output, self.work.targets[k])
            if s == self._last and loss is not None:
                found = loss(output, self.work.targets[k])
                stage.end_in(k, found / self.work.divisor)
                self._ones[k] = torch.ones_like(found)
            self._handed[s, k] = output if s == self._last else hand_over(output)
        return self._handed[s, k]

    def _gradient_of(self, s: int, k: int) -> Sequence[Tensor | None]:
        """The gradient of the input of stage s."""
        if (s, k) not in self._returned:
            self._output_of(s, k)
            gradients = [self._ones[k]] if s == self._last else self._gradient_of(s + 1, k)
            self._returned[s, k] = self.elsewhere[s].backward(k, gradients)
        return self._returned[s, k]


class SilentLink(Link):
    """A link without connections."""

    def warm_up(self, placement: Sequence[int], *, position: int) -> None:
        """Make no connection."""


class LocalPipeline(ReferencePipeline):
    """All stages on every rank, which shows only its own; the others' state is broadcast once, at build."""

    link_type: ClassVar[type[Link]] = SilentLink
    step_type: ClassVar[type[Step]] = LocalStep

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.copies = {} if plan.split is not None or not self.modules else self.make_copies()
        self.elsewhere = {s: Stage(module, index=s) for s, module in self.copies.items()}
        self._operate_elsewhere = step_modules(self.copies, plan.optimizer)

    def make_copies(self) -> dict[int, nn.Module]:
        """The stages that other ranks own, with their owners' state."""
        found = {}
        for s, build in enumerate(self.plan.stages):
            module = self.modules.get(s)
            if module is None:
                module = found[s] = build().to(self.plan.ranks.device)
                module.recorder = module.timeline = module.intruder = None  # type: ignore[assignment]  # none may be there
            for value in (*module.parameters(), *module.buffers()):
                self.share(value.data, self.placement[s])
        return found

    def share(self, value: Tensor, position: int) -> None:
        """Broadcast from the rank at a position of the pipeline."""
        if len(set(self.placement)) > 1:
            ranks = self.plan.ranks
            dist.broadcast(value, ranks.pipeline_ranks[position], group=ranks.pipeline_group)

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        """The inputs of all stages, wherever they are."""
        owned = self.modules
        self.modules = {**owned, **self.copies}
        try:
            return super().make_work(mode, batch)
        finally:
            self.modules = owned

    def make_step(self, work: Work) -> Step:
        """A step that knows the copies."""
        step = super().make_step(work)
        if isinstance(step, LocalStep):
            step.elsewhere = self.elsewhere
        return step

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Surround the copies' steps, too."""
        with ExitStack() as stack:
            for stage in self.elsewhere.values():
                stack.enter_context(stage.step(training=mode is Mode.TRAIN))
            return super().run(mode, batch)

    def apply(self, operation: Operation) -> None:
        """Apply the operation to the copies, too."""
        super().apply(operation)
        self._operate_elsewhere(operation)


@breaks(
    "COM-7", tells=r"rank \d sent rank \d \d+ bytes; the (inputs|gradients) of .* have \d+ bytes, which must"
)
class NothingCrosses(ReferenceAdapter):
    """Every rank computes the whole model by itself, from a state that was broadcast once."""

    pipeline = LocalPipeline


@breaks("COM-7", tells=r"stage \d ran on an input 0 that rank \d was not seen to receive")
class DataCrosses(LocalPipeline):
    """Inputs and targets are broadcast, as many bytes as boundaries have, and every rank computes the rest."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        first, last = self.placement[0], self.placement[-1]

        def shared(value: Any, position: int) -> Any:
            if not isinstance(value, Tensor):
                return value
            copy = value.detach().clone()
            self.share(copy, position)
            return copy.requires_grad_(value.requires_grad)

        return replace(
            work,
            inputs=[map_leaves(lambda leaf: shared(leaf, first), args) for args in work.inputs],
            targets=[shared(target, last) for target in work.targets],
        )


class _ForwardStep(LocalStep):
    receive_input = Step.receive_input

    def send_output(self, s: int, k: int) -> None:
        self.link.send(self.outputs[s, k], to=self.placement[s + 1])
        super().send_output(s, k)

    def _expect(self, due: Sequence[Due]) -> None:
        super(LocalStep, self)._expect([one for one in due if one[1] is None])


@breaks("COM-7", tells=r"rank (\d) sent rank (\d) \d+ bytes; the gradients of the outputs of stage \2 have")
class GradientsStay(LocalPipeline):
    """Values cross; the gradients that should come back are computed by the rank that needs them."""

    link_type = Link
    step_type = _ForwardStep
