"""What a rank does in these tests: run a scenario through the reference and compare with a plain model."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter
from reference_models import WIDTH, build_stage, draw
from torch import nn

from pipeconform.adapter import (
    Batch,
    Loss,
    Microbatch,
    Mode,
    Placement,
    Plan,
    Ranks,
    SgdStep,
    ZeroGrad,
    placement_of,
)
from pipeconform.ranks.rank import RankContext

Step = tuple[str, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A model under a schedule, and the steps to take: ("train" | "eval" | "zero", B, m)."""

    model: str = "plain"
    schedule: str = "1F1B"
    members: tuple[int, ...] = (0, 1)
    v: int = 1
    steps: tuple[Step, ...] = (("train", 6, 3),)
    reduction: str = "mean"
    input_requires_grad: bool = False
    fail_at: tuple[int, int] | None = None
    """Stage and microbatch whose forward raises."""

    @property
    def num_stages(self) -> int:
        return len(self.members) * self.v


class Failing(nn.Module):
    def __init__(self, module: nn.Module, microbatch: int) -> None:
        super().__init__()
        self.module, self.left = module, microbatch

    def forward(self, *args: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("on purpose")
        return self.module(*args)


def loss_of(scenario: Scenario) -> Loss:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        square = (output - target) ** 2
        return square.mean() if scenario.reduction == "mean" else square.sum()

    return Loss(function=loss, reduction=scenario.reduction)


def batch_of(scenario: Scenario, index: int, *, replica: int = 0) -> Batch:
    _, size, m = scenario.steps[index]
    seed = 10 * index + 1000 * replica
    x = draw(size, WIDTH, seed=seed).requires_grad_(scenario.input_requires_grad)
    kwargs: Mapping[int, Mapping[str, Any]] = {}
    if scenario.model == "gain":
        kwargs = {
            s: {"gain": draw(size, seed=100 * s + index).abs() + 0.5, "power": s + 1}
            for s in range(scenario.num_stages)
        }
    target = draw(size, WIDTH, seed=seed + 1)
    xs, targets = x.tensor_split(m), target.tensor_split(m)
    gains = {s: own["gain"].tensor_split(m) for s, own in kwargs.items()}
    micro = tuple(
        Microbatch(
            args=(xs[k],),
            kwargs={s: {**own, "gain": gains[s][k]} for s, own in kwargs.items()},
            target=targets[k],
        )
        for k in range(m)
    )
    return Batch(
        args=(x,),
        kwargs=kwargs,
        target=target,
        loss_kwargs={},
        batch_dim=0,
        num_microbatches=m,
        microbatches=micro,
    )


def plan_of(scenario: Scenario, ranks: Ranks) -> Plan:
    n = scenario.num_stages

    def builder(s: int) -> Any:
        def build() -> nn.Module:
            module = build_stage(scenario.model, s, n)
            failing = scenario.fail_at is not None and scenario.fail_at[0] == s
            return Failing(module, scenario.fail_at[1]) if failing else module

        return build

    claim = ReferenceAdapter().describe().capabilities.schedule(scenario.schedule)
    placement = Placement.LOOP if claim is None else claim.placement  # a table in a file is not claimed
    return Plan(
        stages=tuple(builder(s) for s in range(n)),
        model=nn.Identity,
        schedule=scenario.schedule,
        placement=placement_of(placement, num_ranks=len(scenario.members), num_stages=n),
        loss=loss_of(scenario),
        optimizer=SgdStep(lr=0.1),
        num_microbatches=scenario.steps[0][2],
        microbatch_size=1,
        batch_dim=0,
        boundaries=tuple,
        ranks=ranks,
        trains=any(kind == "train" for kind, _, _ in scenario.steps),
    )


class Unpipelined:
    """All stages in a row, microbatch by microbatch."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        n = scenario.num_stages
        self.stages = [build_stage(scenario.model, s, n) for s in range(n)]
        self.loss = loss_of(scenario).function

    def run(self, batch: Batch, *, training: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        outputs, losses = [], []
        for stage in self.stages:
            stage.train(training)
        for micro in batch.microbatches:
            values: Any = micro.args
            with torch.set_grad_enabled(training):
                for s, stage in enumerate(self.stages):
                    values = values if isinstance(values, tuple | list) else (values,)
                    values = stage(*values, **micro.kwargs.get(s, {}))
                outputs.append(values.detach())
                if training:
                    loss = self.loss(values, micro.target)
                    losses.append(loss.detach())
                    divisor = batch.num_microbatches if self.scenario.reduction == "mean" else 1
                    if loss.requires_grad:
                        (loss / divisor).backward()
        return torch.cat(outputs), losses


def same(found: Any, expected: Any, what: str) -> None:
    if (found is None) != (expected is None):
        raise AssertionError(f"{what}: {found} instead of {expected}")
    if expected is not None:
        torch.testing.assert_close(
            found, expected, rtol=1e-12, atol=1e-13, msg=lambda text: f"{what}: {text}"
        )


_GROUPS: list[dist.ProcessGroup] = []


def new_group(members: Sequence[int]) -> dist.ProcessGroup:
    """A group, instead of the one of the test before: gloo's threads look up a hundred times a second in each."""
    while _GROUPS:
        dist.destroy_process_group(_GROUPS.pop())
    group = dist.new_group(list(members))
    if dist.get_rank() in members:
        _GROUPS.append(group)
    return group


def _ranks(context: RankContext, scenario: Scenario) -> Ranks:
    group = new_group(scenario.members)
    member = context.rank in scenario.members
    return Ranks(
        device=torch.device("cpu"),
        rank=context.rank,
        world_size=context.world_size,
        pipeline_ranks=scenario.members,
        pipeline_rank=scenario.members.index(context.rank) if member else None,
        pipeline_group=group if member else None,
    )


def check(context: RankContext, payload: bytes) -> bytes:
    """Run a scenario; raise AssertionError where this rank's share differs from the plain model's."""
    scenario: Scenario = pickle.loads(payload)
    plan = plan_of(scenario, _ranks(context, scenario))
    pipeline, plain = ReferenceAdapter().build(plan), Unpipelined(scenario)
    owned = pipeline.owned()
    for index, (kind, _, _) in enumerate(scenario.steps):
        if kind == "zero":
            pipeline.apply(ZeroGrad())
            for stage in plain.stages:
                stage.zero_grad()
            continue
        mine, theirs = batch_of(scenario, index), batch_of(scenario, index)
        training = kind == "train"
        result = pipeline.run(Mode.TRAIN if training else Mode.EVAL, mine)
        output, losses = plain.run(theirs, training=training)
        at = f"step {index}"
        same(result.output, output if scenario.num_stages - 1 in owned else None, f"{at}, output")
        if scenario.num_stages - 1 in owned and training:
            same(list(result.losses or ()), losses, f"{at}, losses")
        if 0 in owned and training:
            same(result.input_gradients[0], theirs.args[0].grad, f"{at}, input gradient")
            same(mine.args[0].grad, theirs.args[0].grad, f"{at}, gradient on the input")
        for s, module in owned.items():
            stage = plain.stages[s]
            for name, gradient in pipeline.gradients()[s].items():
                same(gradient, stage.get_parameter(name).grad, f"{at}, stage {s}, gradient of {name}")
            for name, value in module.named_buffers():
                same(value, stage.get_buffer(name), f"{at}, stage {s}, buffer {name}")
            same(getattr(module, "fires", 0), getattr(stage, "fires", 0), f"{at}, stage {s}, hooks")
            if not all(inner.training for inner in module.modules()):
                raise AssertionError(f"{at}, stage {s}: left in eval mode")
    pipeline.close()
    pipeline.close()
    return b""


def fail_then_recover(context: RankContext, payload: bytes) -> bytes:
    """Run a scenario that fails, then a healthy one on the same group; return the error and its cause."""
    scenario: Scenario = pickle.loads(payload)
    ranks = _ranks(context, scenario)
    text = "nothing was raised"
    try:
        ReferenceAdapter().build(plan_of(scenario, ranks)).run(Mode.TRAIN, batch_of(scenario, 0))
    except RuntimeError as error:
        text = f"{type(error).__name__} from {type(error.__cause__).__name__}: {error}"
    healthy = dataclasses.replace(scenario, fail_at=None)
    result = ReferenceAdapter().build(plan_of(healthy, ranks)).run(Mode.TRAIN, batch_of(healthy, 0))
    output, _ = Unpipelined(healthy).run(batch_of(healthy, 0), training=True)
    if result.output is not None:
        same(result.output, output, "after the error")
    return text.encode()


def refuse(context: RankContext, payload: bytes) -> bytes:
    """Run a scenario that is a mistake of configuration; return the ValueError's text."""
    scenario: Scenario = pickle.loads(payload)
    pipeline = ReferenceAdapter().build(plan_of(scenario, _ranks(context, scenario)))
    for index in range(len(scenario.steps)):
        try:
            pipeline.run(Mode.TRAIN, batch_of(scenario, index))
        except ValueError as error:
            return str(error).encode()
    return b"nothing was raised"
