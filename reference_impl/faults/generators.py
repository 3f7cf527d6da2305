"""Faults of schedule generators: a wrong table, carried out and declared unchanged.

One per generator that the reference offers, and three that leave a table incomplete or impossible. The
table is changed before it is lowered, so every message still fits its computations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeconform.schedule import Action, Kind, Table, generate, lower, to_csv, without_communication

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..runtime import Step, Work, Yield
from ..tables import evaluation_table, training_table
from .fault import breaks

_BACKWARD = (Kind.B, Kind.I, Kind.W)


class _Instead(Step):
    """Carries out another list of actions than the one it gets."""

    instead: Sequence[Action] = ()

    def run(self, actions: Sequence[Action]) -> Yield:
        return super().run(self.instead)


class _Generated(ReferencePipeline):
    """Runs the table that `change` makes from the right one."""

    step_type = _Instead

    def change(self, table: Table) -> Table:
        raise NotImplementedError

    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        assert isinstance(step, _Instead)
        table = self._wrong(num_microbatches=len(work.targets), training=work.loss is not None)
        step.instead = lower(table, receives="late")[self.position]
        return step

    def table(self) -> str | None:
        if not self.modules or not self.plan.trains:
            return None
        return to_csv(self._wrong(num_microbatches=self.plan.num_microbatches, training=True))

    def _wrong(self, *, num_microbatches: int, training: bool) -> Table:
        p = len(self.plan.ranks.pipeline_ranks)
        if training:
            right = training_table(
                self.plan.schedule,
                num_ranks=p,
                stages_per_rank=len(self.placement) // p,
                num_microbatches=num_microbatches,
            )
        else:
            right = evaluation_table(self.placement, num_ranks=p, num_microbatches=num_microbatches)
        right = without_communication(right)
        return self.change(right) if training or not self.plan.trains else right


def _generator(change: Callable[[Table], Table]) -> type[ReferencePipeline]:
    return type("_Generator", (_Generated,), {"change": lambda self, table: change(table)})


def _each_rank(change: Callable[[int, list[Action]], Iterable[Action]]) -> Callable[[Table], Table]:
    """A change of every rank's list by itself."""

    def changed(table: Table) -> Table:
        ranks = [list(change(rank, list(actions))) for rank, actions in enumerate(table)]
        return Table.build(ranks, placement=table.placement, num_microbatches=table.num_microbatches)

    return changed


def _other(name: str) -> Callable[[Table], Table]:
    """Another family's table of the same size."""

    def changed(table: Table) -> Table:
        v = table.num_stages // table.num_ranks
        size: dict[str, Any] = {"num_ranks": table.num_ranks, "stages_per_rank": v}
        return generate(name, num_microbatches=table.num_microbatches, **size)

    return changed


# Orders. Each keeps every computation, and every dependency between them.


def _backward_early(table: Table) -> Table:
    ranks = [list(actions) for actions in table]
    last = ranks[-1]
    first = next(n for n, one in enumerate(last) if one.kind is Kind.B)
    if last[first].microbatch != last[first - 1].microbatch:
        last[first - 1], last[first] = last[first], last[first - 1]
    return Table.build(ranks, placement=table.placement, num_microbatches=table.num_microbatches)


def _first_backward_late(rank: int, actions: list[Action]) -> list[Action]:
    for n, (one, after) in enumerate(itertools.pairwise(actions)):
        if (one.kind, after.kind) == (Kind.B, Kind.F) and one.stage == after.stage and rank == 0:
            return [*actions[:n], after, one, *actions[n + 2 :]]
    return actions


def _warm_up(longer: int) -> Callable[[Table], Table]:
    """1F1B with another number of forwards before the first backward."""

    def changed(table: Table) -> Table:
        m, ranks = table.num_microbatches, []
        for rank in range(table.num_ranks):
            right = min(m, table.num_ranks - rank)
            count = max(1, min(m, right + longer)) if rank < table.num_ranks - 1 else right
            forwards = [Action(rank, Kind.F, k) for k in range(m)]
            actions = forwards[:count]
            for k in range(m):
                actions += [Action(rank, Kind.B, k), *forwards[count + k : count + k + 1]]
            ranks.append(actions)
        return Table.build(ranks, placement=table.placement, num_microbatches=m)

    return changed


def _depth_first(rank: int, actions: list[Action]) -> list[Action]:
    forwards = [one for one in actions if one.kind is Kind.F]
    forwards.sort(key=lambda one: (one.microbatch or 0, one.stage))
    return forwards + [one for one in actions if one.kind is not Kind.F]


def _weight_at_once(rank: int, actions: list[Action]) -> list[Action]:
    found: list[Action] = []
    for one in actions:
        if one.kind is not Kind.W:
            found.append(one)
        if one.kind is Kind.I:
            found.append(one._replace(kind=Kind.W))
    return found


def _whole_backward(rank: int, actions: list[Action]) -> list[Action]:
    return [
        one._replace(kind=Kind.B) if one.kind is Kind.I else one for one in actions if one.kind is not Kind.W
    ]


def _weights_last(rank: int, actions: list[Action]) -> list[Action]:
    return [one for one in actions if one.kind is not Kind.W] + [one for one in actions if one.kind is Kind.W]


def _weights_reversed(rank: int, actions: list[Action]) -> list[Action]:
    waiting: list[Action] = []
    found = []
    for one in actions:
        if one.kind is Kind.I:
            waiting.append(one._replace(kind=Kind.W))
        found.append(waiting.pop() if one.kind is Kind.W else one)
    return found


def _microbatches_reversed(rank: int, actions: list[Action]) -> list[Action]:
    most = max(one.microbatch or 0 for one in actions)
    return [one._replace(microbatch=most - (one.microbatch or 0)) for one in actions]


# Tables that are incomplete or impossible.


def _last_backward_missing(rank: int, actions: list[Action]) -> list[Action]:
    most = max(one.microbatch or 0 for one in actions)
    return [one for one in actions if one.kind not in _BACKWARD or one.microbatch != most]


def _first_forward_twice(rank: int, actions: list[Action]) -> list[Action]:
    last = len(actions) - 1 - next(n for n, one in enumerate(reversed(actions)) if one.kind is Kind.F)
    return [*actions[: last + 1], actions[0], *actions[last + 1 :]] if rank == 0 else actions


def _weight_before_input(rank: int, actions: list[Action]) -> list[Action]:
    found = [one for one in actions if one.kind is not Kind.W or one.microbatch != 0]
    at = next(n for n, one in enumerate(found) if one.kind is Kind.I)
    return [*found[:at], found[at]._replace(kind=Kind.W), *found[at:]]


@breaks("SCH-2", schedule="GPipe", tells=r"(\d)B\d+ where \1F\d+ is due")
class EagerBackward(ReferenceAdapter):
    """GPipe's last rank begins its backwards one forward too early."""

    pipeline = _generator(_backward_early)


@breaks("SCH-2", tells="rank 0 .*: 0B0 where 0F[12] is due")
class ShortWarmUp(ReferenceAdapter):
    """1F1B warms up with one forward too few."""

    pipeline = _generator(_warm_up(-1))


@breaks(
    "SCH-3", tells=r"rank (\d) holds \d microbatches .* after \1F\d; the bound of 1F1B is", also=("SCH-2",)
)
class LongWarmUp(ReferenceAdapter):
    """1F1B warms up with one forward too many."""

    pipeline = _generator(_warm_up(1))


@breaks("SCH-2", schedule="Interleaved1F1B", tells=r"\dF\d+ where \d[FB]\d+ is due")
class ChunkByChunk(ReferenceAdapter):
    """Interleaved 1F1B runs all microbatches through one stage before the next one begins."""

    pipeline = _generator(_other("looped_bfs"))


@breaks("SCH-2", schedule="Interleaved1F1B-Megatron", tells=r"\dF\d+ where \d[FB]\d+ is due")
class MegatronChunkByChunk(ReferenceAdapter):
    """Interleaved 1F1B with Megatron's warm-up runs stage by stage."""

    pipeline = _generator(_other("looped_bfs"))


@breaks("SCH-2", schedule="LoopedBFS", tells=r"computation 1: \dF0 where 0F1 is due")
class DepthFirst(ReferenceAdapter):
    """Looped BFS takes one microbatch after the other through the stages of a rank."""

    pipeline = _generator(_each_rank(_depth_first))


@breaks("SCH-2", schedule="ZB-H1", tells=r"\dW\d where \d[FI]\d is due")
class WeightsAtOnce(ReferenceAdapter):
    """ZB-H1 computes weight gradients right after input gradients, and leaves the bubble."""

    pipeline = _generator(_each_rank(_weight_at_once))


@breaks("SCH-2", schedule="ZB-H2", tells=r"\d[BI]0 where \dF\d is due")
class TimidWarmUp(ReferenceAdapter):
    """ZB-H2's warm-up is as short as ZB-H1's."""

    pipeline = _generator(_other("zb_h1"))


@breaks("SCH-2", schedule="InterleavedZeroBubble", tells=r"(\d)B\d where \1I\d is due")
class NothingSplit(ReferenceAdapter):
    """Interleaved zero bubble runs whole backwards."""

    pipeline = _generator(_each_rank(_whole_backward))


@breaks("SCH-2", schedule="ZBVZeroBubble", tells=r"\dW\d where \dW\d is due")
class WeightsReversed(ReferenceAdapter):
    """ZB-V takes the newest waiting weight part instead of the oldest."""

    pipeline = _generator(_each_rank(_weights_reversed))


@breaks(
    "SCH-3",
    schedule="V-Half",
    tells=r"holds \d+ microbatches .* after \dF\d; the bound of V-Half is",
    also=("SCH-2",),
)
class HalfIsWhole(ReferenceAdapter):
    """V-Half holds as many activations as ZB-V."""

    pipeline = _generator(_other("zb_v"))


@breaks(
    "SCH-3",
    schedule="V-Min",
    tells=r"holds \d+ microbatches .* after \dF\d; the bound of V-Min is",
    also=("SCH-2",),
)
class MinIsWhole(ReferenceAdapter):
    """V-Min holds as many activations as ZB-V."""

    pipeline = _generator(_other("zb_v"))


@breaks("SCH-2", schedule="DualPipeV", tells=r"computation \d+: .* where \dW\d is due")
class WeightsAtTheEnd(ReferenceAdapter):
    """DualPipeV keeps all weight parts for the end."""

    pipeline = _generator(_each_rank(_weights_last))


@breaks("SCH-2", schedule="Hanayo", tells=r"rank 0 .*: (\d)F1 where \1B0 is due")
class LateBackward(ReferenceAdapter):
    """Hanayo's first rank runs one forward more before its first backward."""

    pipeline = _generator(_each_rank(_first_backward_late))


@breaks("SCH-2", schedule="ForwardOnly", tells=r"computation 0: (\d)F[1-9] where \1F0 is due")
class LastFirst(ReferenceAdapter):
    """Forward-only takes the microbatches from the last to the first."""

    pipeline = _generator(_each_rank(_microbatches_reversed))


@breaks(
    "SCH-1",
    status="error",
    tells=r"stage \d, microbatch \d, end of the step: .*the table holds no backward",
    also=("FWD-1",),
)
class BackwardForgotten(ReferenceAdapter):
    """The last microbatch has no backward in the table."""

    pipeline = _generator(_each_rank(_last_backward_missing))


@breaks("SCH-1", schedule="GPipe", status="error", tells="stage 0, microbatch 0, forward", also=("FWD-1",))
class ForwardDoubled(ReferenceAdapter):
    """The first forward is in the table twice."""

    pipeline = _generator(_each_rank(_first_forward_twice))


@breaks(
    "SCH-1", schedule="ZB-H1", status="error", tells=r"stage \d, microbatch 0, weight part", also=("FWD-1",)
)
class WeightBeforeInput(ReferenceAdapter):
    """The first weight part is before its input part."""

    pipeline = _generator(_each_rank(_weight_before_input))
