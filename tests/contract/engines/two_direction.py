"""A two-direction engine in the manner of DualPipe, the smallest that is one, and its adapter.

Every rank holds two stages: r for the half of the microbatches that enter at the first rank and
travel down, and p−1−r for the half that enters at the last rank and travels up. The schedule of `TwoDirection` is plain
(all forwards, then all backwards, the directions taking turns): placement and data flow are the point. `DualPipe` runs
DualPipe's order, with whole backwards where the table has input parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    MicrobatchRule,
    Mode,
    Pipeline,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.errors import Unsupported
from pipeconform.schedule import Kind, generate


class Direction:
    """One direction on one rank: a stage, its neighbours, and what is in flight."""

    def __init__(self, plan: Plan, number: int, modules: dict[int, nn.Module]) -> None:
        members, rank = plan.ranks.pipeline_ranks, plan.ranks.pipeline_rank
        assert rank is not None
        step = 1 if number == 0 else -1
        self.stage = rank if number == 0 else len(members) - 1 - rank
        self.first, self.last = self.stage == 0, self.stage == len(members) - 1
        self._module, self._loss, self._group = modules[self.stage], plan.loss, plan.ranks.pipeline_group
        self._before = None if self.first else members[rank - step]
        self._after = None if self.last else members[rank + step]
        self._tag = 2 * number  # activations of this direction; its gradients travel under the next tag
        self._arrives = next((e.tensors[0] for e in plan.boundaries() if e.consumer == self.stage), None)
        self._in_flight: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._sends: list[tuple[dist.Work, torch.Tensor]] = []
        self.losses: list[torch.Tensor] = []

    def _send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        self._sends.append((dist.isend(tensor, dst=to, group=self._group, tag=tag), tensor))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> None:
        if self._arrives is not None:
            x = torch.empty(self._arrives.shape, dtype=self._arrives.dtype, device=x.device)
            dist.recv(x, src=self._before, group=self._group, tag=self._tag)
            x.requires_grad_()
        y = self._module(x)
        if self._after is None:
            y = self._loss.function(y, target)
            self.losses.append(y.detach())
        else:
            self._send(y.detach().contiguous(), self._after, self._tag)
        self._in_flight.append((x, y))

    def backward(self) -> None:
        x, y = self._in_flight.pop(0)
        gradient = None
        if self._after is not None:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=self._after, group=self._group, tag=self._tag + 1)
        y.backward(gradient)
        if self._before is not None:
            assert x.grad is not None
            self._send(x.grad, self._before, self._tag + 1)

    def finish(self) -> list[torch.Tensor]:
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()
        losses, self.losses = self.losses, []
        return losses


PLAIN = ScheduleClaim(
    name="DualPipe",
    placement=Placement.MIRROR,
    min_ranks=2,
    ranks_even=True,
    min_microbatches=2,
    microbatches=MicrobatchRule.EVEN,
    evaluates=False,
)


class TwoDirection:
    sums_over_owners = True
    claim = PLAIN

    def describe(self) -> Description:
        return Description(
            name="two-direction",
            version="1",
            capabilities=Capabilities(
                schedules=(self.claim,),
                features=frozenset(
                    {Feature.MICROBATCH_LOSSES, Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE}
                ),
                boundary=BoundaryClaim(dtypes=("float32", "float64")),
                scale=GradientScale(at="none", input_gradients_scaled=False),
                reductions=("mean", "sum"),
                sub_groups=True,
            ),
        )

    def setup_process(self) -> None:
        """Nothing: the engine has no process-wide state."""

    def build(self, plan: Plan) -> Pipeline:
        if plan.schedule != "DualPipe" or not plan.trains:
            raise Unsupported(f"schedule {plan.schedule!r}")
        members, rank = plan.ranks.pipeline_ranks, plan.ranks.pipeline_rank
        pairs = [dist.new_group([a, b]) for a, b in zip(members, reversed(members), strict=True) if a < b]
        if rank is None:
            return Bystander()
        pair = pairs[min(rank, len(members) - 1 - rank)]
        return _TwoDirectionPipeline(plan, pair, sums=self.sums_over_owners, order=self.order)

    def order(self, rank: int, num_ranks: int, num_microbatches: int) -> list[tuple[Kind, int]]:
        """The computations of a rank, each with its direction; every direction takes its microbatches in order."""
        return [(kind, number) for kind in (Kind.F, Kind.B) for number in (0, 1) * (num_microbatches // 2)]


class _TwoDirectionPipeline:
    def __init__(
        self,
        plan: Plan,
        owners: dist.ProcessGroup,
        *,
        sums: bool,
        order: Callable[[int, int, int], list[tuple[Kind, int]]],
    ) -> None:
        self._modules, self._owners, self._sums, self._order = plan.build_owned(), owners, sums, order
        self._place = plan.ranks.pipeline_rank, len(plan.ranks.pipeline_ranks)
        self._directions = [Direction(plan, number, self._modules) for number in (0, 1)]
        self.apply = step_modules(self._modules, plan.optimizer)

    def owned(self) -> dict[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is not Mode.TRAIN:
            raise Unsupported("evaluation")
        parameters = [p for s in sorted(self._modules) for p in self._modules[s].parameters()]
        before = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        half = batch.num_microbatches // 2
        begun = [0, 0]
        for kind, number in self._order(*self._place, batch.num_microbatches):
            if kind is Kind.F:
                microbatch = batch.microbatches[number * half + begun[number]]
                begun[number] += 1
                self._directions[number].forward(microbatch.args[0], microbatch.target)
            else:
                self._directions[number].backward()
        finished = [direction.finish() for direction in self._directions]
        self._complete(parameters, before)
        for number, direction in enumerate(self._directions):
            if direction.last:
                return StepResult(
                    losses=finished[number], microbatches=range(number * half, (number + 1) * half)
                )
        return StepResult()

    def _complete(self, parameters: list[nn.Parameter], before: list[torch.Tensor | None]) -> None:
        """Add the other owner's half, then what earlier runs left (reducing that again would double it)."""
        for p, earlier in zip(parameters, before, strict=True):
            assert p.grad is not None
            if self._sums:
                dist.all_reduce(p.grad, group=self._owners)
            if earlier is not None:
                p.grad += earlier

    def gradients(self) -> dict[int, dict[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        """Give back the group of the two owners, once."""
        if self._modules:
            dist.destroy_process_group(self._owners)
        self._modules = {}


class HalfGradients(TwoDirection):
    """Wrong on purpose: each owner shows its own half of a gradient."""

    sums_over_owners = False


class DualPipe(TwoDirection):
    """The same in DualPipe's order, whose weight parts are only there for modules that leave their weights to it."""

    claim = replace(
        PLAIN, family="dualpipe", min_microbatches_per_rank=2, split_backward=True, split_weights="deferred"
    )

    def order(self, rank: int, num_ranks: int, num_microbatches: int) -> list[tuple[Kind, int]]:
        table = generate(
            "dualpipe", num_ranks=num_ranks, stages_per_rank=2, num_microbatches=num_microbatches
        )
        leaves = (leaf for action in table[rank] for leaf in action.leaves)
        return [(leaf.kind, leaf.stage // num_ranks) for leaf in leaves if leaf.kind is not Kind.W]


class ForwardsFirst(DualPipe):
    """Wrong on purpose: it claims DualPipe, and runs all forwards first."""

    order = TwoDirection.order
