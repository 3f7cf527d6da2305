"""Facts about who does what: schedules, placements, groups, and plans that are wrong on purpose."""

from __future__ import annotations

from functools import cache
from typing import Any

from pipeconform.adapter import Capabilities, Placement, ScheduleClaim, laid_out
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.case.build.declared import declared_of
from pipeconform.case.build.given_table import given_csv
from pipeconform.case.case import Case
from pipeconform.case.planned import planned_for
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.judge.named import accepted
from pipeconform.schedule.families import Size

__all__ = ["bounds_on_inputs", "layout_facts", "owners"]


class _Expression(str):
    """Python text, shown as it is in a tuple."""

    __repr__ = str.__str__


@cache
def _claims() -> Capabilities:
    return TorchPipelining().describe().capabilities


def _claim(case: Case) -> ScheduleClaim:
    claim = _claims().schedule(case.schedule)
    if claim is None:
        raise NotPlainError(f"torch has no schedule {case.schedule}")
    return claim


def bounds_on_inputs(case: Case) -> dict[int, int]:
    """How many forwards' inputs each rank may keep, by the schedule's name."""
    size = Size(case.num_ranks, case.stages_per_rank, case.runs[0].num_microbatches)
    families = [one for one in accepted(_claim(case).family or "") if one.refusal(size) is None]
    return {
        rank: max(family.in_flight_weight(position, size) for family in families)
        for position, rank in enumerate(case.world.pipeline_ranks)
    }


def owners(case: Case) -> tuple[frozenset[int], ...]:
    """The pipeline ranks that own each stage."""
    how = Placement(case.world.placement) if case.world.placement else _claim(case).placement
    return tuple(map(frozenset, laid_out(how, num_ranks=case.num_ranks, num_stages=case.num_stages)))


def layout_facts(case: Case) -> dict[str, Any]:
    """What stands at the beginning of a program; empty where every rank plans alike."""
    world = case.world
    plans = {rank: planned_for(case, position) for position, rank in enumerate(world.pipeline_ranks)}
    placed = {
        rank: [s for s, several in enumerate(owners(planned_for(case, position))) if position in several]
        for ranks in world.pipelines
        for position, rank in enumerate(ranks)
    }
    microbatches = {rank: plan.runs[0].num_microbatches for rank, plan in plans.items()}
    counts = {rank: plan.num_stages for rank, plan in plans.items()}
    right = case.runs[0].num_microbatches
    wrong = world.misplan is not None and world.misplan.how in ("shape", "dtype")
    return {
        "pipelines": [list(ranks) for ranks in world.pipelines],
        "replicas_of": {s: [ranks[min(o)] for ranks in world.pipelines] for s, o in enumerate(owners(case))},
        "placed": dict(sorted(placed.items())),
        "microbatches": right,
        "planned": microbatches if set(microbatches.values()) != {right} else {},
        "stages_planned": counts if len(set(counts.values())) > 1 else {},
        "declared": _declared(case) if wrong or world.declared else {},
        "table": (given_csv(case) or "").splitlines(),
    }


def _declared(case: Case) -> dict[int, tuple[tuple[_Expression, ...], ...]]:
    """What is declared of the stages' inputs and outputs."""
    return {
        s: tuple(
            tuple(_Expression(f"example({[*one.shape]}, {one.dtype}, {one.requires_grad})") for one in specs)
            for specs in (said.inputs, said.outputs)
        )
        for s, said in declared_of(case).items()
    }
