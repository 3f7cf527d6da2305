"""Torch's own pipelining with one mistake each, of the kinds that a change to an engine brings.

Each is a plain adapter: `pipeconform run --impl benchmarks/gate_trials/planted.py:NAME`.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import torch
import torch.distributed as dist

from pipeconform.adapter import Batch, Mode, Plan, StepResult
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.stage_wrapping import bare

__all__ = ["PLANTED"]

_kept: list[Any] = []


class _Planted(TorchPipelining):
    """Plants its mistake under one schedule."""

    schedule = "1F1B"

    def build(self, plan: Plan) -> Any:
        pipeline = super().build(plan)
        if plan.schedule == self.schedule and pipeline.owned():
            self.plant(pipeline, plan)
        return pipeline

    def plant(self, pipeline: Any, plan: Plan) -> None:
        """Change one rank's pipeline."""
        raise NotImplementedError


class _AroundSteps(_Planted):
    """Changes what happens around each step."""

    def plant(self, pipeline: Any, plan: Plan) -> None:
        run = pipeline.run
        pipeline.run = lambda mode, batch: self.around(run, mode, batch, pipeline, plan)

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        """One step."""
        raise NotImplementedError


class NotDivided(_Planted):
    """GPipe's gradients are summed over microbatches where they should be averaged."""

    schedule = "GPipe"

    def plant(self, pipeline: Any, plan: Plan) -> None:
        pipeline._schedule.scale_grads = False


class DeclaredOrder(_Planted):
    """The order that 1F1B declares has rank 0's first two forwards exchanged."""

    def plant(self, pipeline: Any, plan: Plan) -> None:
        table = pipeline.table
        pipeline.table = lambda: _first_two_exchanged(table())


class MicrobatchNotCounted(_Planted):
    """The loss of a step's last microbatch gives no gradient."""

    schedule = "InterleavedZeroBubble"

    def plant(self, pipeline: Any, plan: Plan) -> None:
        schedule, m = pipeline._schedule, plan.num_microbatches
        loss, calls = schedule._loss_fn, iter(range(10**9))
        if loss is not None and m > 1:
            schedule._loss_fn = lambda output, target, **others: (
                loss(output, target, **others) * (0.0 if next(calls) % m == m - 1 else 1.0)
            )


class OutputsReversed(_AroundSteps):
    """LoopedBFS returns the rows of a batch in the opposite order."""

    schedule = "LoopedBFS"

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        done = run(mode, batch)
        if not isinstance(done.output, torch.Tensor) or not done.output.ndim:
            return done
        return StepResult(
            output=done.output.flip(0), losses=done.losses, input_gradients=done.input_gradients
        )


class LonelyBarrier(_AroundSteps):
    """Under DualPipeV the first rank waits for the others after its second step."""

    schedule = "DualPipeV"

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        done = run(mode, batch)
        pipeline.steps = getattr(pipeline, "steps", 0) + 1
        if pipeline.steps == 2 and 0 in pipeline.owned() and plan.ranks.pipeline_group is not None:
            dist.barrier(plan.ranks.pipeline_group)
        return done


class ArgumentsRefused(_Planted):
    """Stages after the first refuse keyword arguments."""

    schedule = "Interleaved1F1B"

    def plant(self, pipeline: Any, plan: Plan) -> None:
        for s, stage in pipeline._stages.items():
            if s:
                stage.forward_one_chunk = _without_keywords(stage.forward_one_chunk)


class TrainsInEvaluation(_AroundSteps):
    """GPipe leaves modules in training mode when it evaluates."""

    schedule = "GPipe"

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        evaluating = mode is Mode.EVAL
        for module in pipeline.owned().values():
            if evaluating:
                module.train = lambda mode=True, module=module: type(module).train(module, True)
        try:
            return run(mode, batch)
        finally:
            for module in pipeline.owned().values():
                module.__dict__.pop("train", None)


class ReplicasApart(_Planted):
    """Replicas of the last stage do not synchronise their gradients."""

    schedule = "GPipe"

    def plant(self, pipeline: Any, plan: Plan) -> None:
        for s, stage in pipeline._stages.items():
            if s == len(plan.stages) - 1:
                stage.submod = bare(stage.submod)


class ReplicasApartElsewhere(ReplicasApart):
    """The same; a small run judges replicas under GPipe alone, so only profile core sees it."""

    schedule = "1F1B"


class AccumulationLost(_AroundSteps):
    """A step forgets the gradients of the steps before it: beside what torch does to them, which is known."""

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        if mode is Mode.TRAIN:
            for module in pipeline.owned().values():
                module.zero_grad(set_to_none=True)
        return run(mode, batch)


class WholeWorld(_AroundSteps):
    """Every step ends with a collective of the whole world, whoever is in the pipeline."""

    schedule = "ZBVZeroBubble"

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        done = run(mode, batch)
        dist.all_reduce(torch.zeros(1, device=plan.ranks.device))
        return done


class BatchesKept(_AroundSteps):
    """Every step's outputs stay in memory."""

    schedule = "ForwardOnly"

    def around(self, run: Any, mode: Mode, batch: Batch, pipeline: Any, plan: Plan) -> StepResult:
        done = run(mode, batch)
        _kept.append((batch, done))
        return done


def _without_keywords(forward: Any) -> Any:
    def refusing(microbatch: int, args: Any, kwargs: Any = None, **others: Any) -> Any:
        if kwargs:
            raise TypeError("this stage takes no keyword arguments")
        return forward(microbatch, args, kwargs, **others)

    return refusing


def _first_two_exchanged(table: str | None) -> str | None:
    if table is None:
        return None
    rows = list(csv.reader(io.StringIO(table)))
    forwards = [place for place, action in enumerate(rows[0]) if "F" in action]
    if len(forwards) > 1:
        a, b = forwards[:2]
        rows[0][a], rows[0][b] = rows[0][b], rows[0][a]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


PLANTED: tuple[type[_Planted], ...] = (
    NotDivided,
    DeclaredOrder,
    MicrobatchNotCounted,
    OutputsReversed,
    LonelyBarrier,
    ArgumentsRefused,
    TrainsInEvaluation,
    ReplicasApart,
    ReplicasApartElsewhere,
    AccumulationLost,
    WholeWorld,
    BatchesKept,
)
