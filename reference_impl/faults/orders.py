"""Faults of steps in an order of the user's own, right or not, and of receives that are posted late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult
from pipeconform.schedule import Action, Kind

from ..adapter import ReferencePipeline
from ..runtime import Step, Work, Yield
from ..tables import given_table
from .fault import breaks

_Rows = list[list[str]]


def _rows(plan: Plan) -> _Rows:
    return [line.split(",") for line in (plan.table or "").splitlines()]


def _with(plan: Plan, rows: _Rows) -> Plan:
    return replace(plan, table="\r\n".join(map(",".join, rows)))


@breaks("SCH-10", schedule="GPipe", tells="does not compute in the order that the plan gives")
class OwnOrderInstead(ReferencePipeline):
    """The schedule's own order runs, with the same numbers; the user's table is not looked at."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(replace(plan, table=None))


def _at_once(row: list[str]) -> list[str]:
    """A line in which every weight part follows its input part."""
    later = [cell for cell in row if "W" not in cell]
    for cell in row:
        if "W" in cell:
            later.insert(later.index(cell.replace("W", "I")) + 1, cell)
    return later


@breaks("SCH-10", schedule="ZB-H1", tells="does not compute in the order that the plan gives")
class WeightPartsAtOnce(ReferencePipeline):
    """Where the user's table puts a weight part off, it runs right after its input part."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan if plan.table is None else _with(plan, [*map(_at_once, _rows(plan))]))


class _AsComputed(Step):
    def run(self, actions: Sequence[Action]) -> Yield:
        done = super().run(actions)
        listed = dict(enumerate(done.outputs.values())), dict(enumerate(done.losses.values()))
        return replace(done, outputs=listed[0], losses=listed[1])


@breaks(
    "SCH-11", schedule="GPipe", tells=r"microbatch \d's (output|loss) stands in the place of microbatch \d's"
)
class ResultsAsComputed(ReferencePipeline):
    """Outputs and losses are listed in the order in which the last stage computed them."""

    step_type = _AsComputed


@breaks("SCH-11", schedule="GPipe", status="error")
class RefusedByTheLastRank(ReferencePipeline):
    """Only the rank of the last stage refuses a table in which it takes microbatches out of turn."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        last = len(plan.stages) - 1
        if plan.table is None or last not in plan.owned_stages():
            return
        forwards = [cell for cell in _rows(plan)[self.position] if cell.startswith(f"{last}F")]
        if forwards != [f"{last}F{k}" for k in range(plan.num_microbatches)]:
            raise ValueError(f"the table has the microbatches of stage {last} out of turn")


@breaks("ERR-19", tells="(forward|backward) of stage .* twice; no rank raised; promised: ValueError")
class RepeatedOnce(ReferencePipeline):
    """A computation that the user's table has twice is done once, without a word."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(_with(plan, [[*dict.fromkeys(row)] for row in _rows(plan)]) if plan.table else plan)


@breaks("ERR-19", tells="are exchanged in the table; no rank raised")
class LinesByStage(ReferencePipeline):
    """The lines of the user's table may come in any order: every rank takes the one with its stages."""

    def __init__(self, plan: Plan) -> None:
        rows = sorted(_rows(plan), key=lambda row: min(cell[0] for cell in row))
        super().__init__(_with(plan, rows) if plan.table else plan)


@breaks("ERR-19", tells="raised ValueError: bad table; it does not name")
class TableErrorsWordless(ReferencePipeline):
    """The error about the user's table does not say what is wrong in it."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            return super().run(mode, batch)
        except ValueError:
            if self.plan.table is None:
                raise
            raise ValueError("bad table") from None


@breaks("ERR-19", status="hung", tells="waits forever, when .* and rank 0 raised")
class TableCheckedByFirst(ReferencePipeline):
    """The first rank checks the user's table for all; where it refuses the table, the others are not told."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        ranks = self.plan.ranks
        if self.plan.table is None or ranks.pipeline_group is None:
            return super().run(mode, batch)
        right = torch.zeros(1, device=ranks.device)
        if ranks.pipeline_rank == 0:
            num_ranks, m = len(ranks.pipeline_ranks), batch.num_microbatches
            given_table(self.plan.table, placement=self.placement, num_ranks=num_ranks, num_microbatches=m)
        dist.broadcast(right, group=ranks.pipeline_group, group_src=0)
        return super().run(mode, batch)


class _Late(Step):
    late = False


class _Overtaking(_Late):
    def run(self, actions: Sequence[Action]) -> Yield:
        return super().run(_where_needed(actions) if self.late else actions)


def _where_needed(actions: Sequence[Action]) -> list[Action]:
    """The actions with every receive right before the computation that needs it, whatever was sent before."""
    receives = {
        (Kind.F if one.kind is Kind.RECV_F else Kind.B, one.stage, one.microbatch): one
        for one in actions
        if one.kind in (Kind.RECV_F, Kind.RECV_B)
    }
    found: list[Action] = []
    for one in actions:
        if one.kind in (Kind.RECV_F, Kind.RECV_B):
            continue
        kind = Kind.B if one.kind is Kind.I else one.kind
        needed = receives.get((kind, one.stage, one.microbatch))
        found += [one] if needed is None else [needed, one]
    return found


class _LatePipeline(ReferencePipeline):
    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        if isinstance(step, _Late):
            step.late = self.plan.late_receives
        return step


@breaks("SCH-12", schedule="InterleavedZeroBubble", status="hung")
class ReceivesOvertake(_LatePipeline):
    """A late receive moves to the computation that needs it, behind receives of messages that are sent later."""

    step_type = _Overtaking


class _Stale(_Late):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._before: dict[int, Sequence[Tensor | None]] = {}

    def receive_gradient(self, s: int, k: int) -> None:
        super().receive_gradient(s, k)
        before = self._before.get(s)
        if self.late and before is not None and (s, k) in self.output_gradients:
            self.output_gradients[s, k] = before
        elif (s, k) in self.output_gradients:
            self._before[s] = self.output_gradients[s, k]


@breaks("SCH-12", tells="is not the reference's")
class LateReceiveNotWaitedFor(_LatePipeline):
    """A late receive of a gradient is not waited for: its buffer still has the first microbatch's."""

    step_type = _Stale
