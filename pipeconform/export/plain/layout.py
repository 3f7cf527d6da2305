"""Which rank has which stages, by torch's names: schedules, placements, groups, and plans that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from pipeconform.adapter import Capabilities, Placement, ScheduleClaim, laid_out
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.case.build.declared import declared_of
from pipeconform.case.case import Case
from pipeconform.case.planned import planned_for
from pipeconform.export.plain.refusal import NotPlainError
from pipeconform.export.plain.source import call
from pipeconform.judge.named import accepted
from pipeconform.schedule.families import Size

__all__ = ["bounds_on_inputs", "is_lone", "layout_text", "owners", "placed"]

_LONE = ("ForwardOnly", "GPipe", "1F1B")


def is_lone(case: Case) -> bool:
    """Whether the schedule takes one stage, and not a list."""
    return case.schedule in _LONE


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


def placed(case: Case) -> dict[int, list[int]]:
    """The stages of every rank of the pipelines, as its own plan has them."""
    found = {}
    for ranks in case.world.pipelines:
        for position, rank in enumerate(ranks):
            layout = owners(planned_for(case, position))
            found[rank] = [s for s, several in enumerate(layout) if position in several]
    return dict(sorted(found.items()))


def layout_text(case: Case) -> Iterator[str]:
    """The constants that say which process does what."""
    world = case.world
    yield f"WORLD = {world.size}  # processes"
    if world.num_replicas > 1:
        pipelines = [list(ranks) for ranks in world.pipelines]
        yield f"PIPELINES = {pipelines}  # the ranks of every replica"
        replicas = {s: [ranks[min(several)] for ranks in pipelines] for s, several in enumerate(owners(case))}
        yield "# the ranks that have each stage"
        yield call("REPLICAS = ", [f"{s}: {ranks}" for s, ranks in replicas.items()], ends=("{", "}"))
    yield f"PLACED = {placed(case)}  # the stages of every rank"
    plans = {rank: planned_for(case, position) for position, rank in enumerate(world.pipeline_ranks)}
    sizes = {rank: plan.runs[0].num_microbatches for rank, plan in plans.items()}
    right = case.runs[0].num_microbatches
    yield f"M = {right}  # microbatches"
    if set(sizes.values()) != {right}:
        yield f"PLANNED = {sizes}  # the microbatches in the plan of every rank"
    counts = {rank: plan.num_stages for rank, plan in plans.items()}
    if len(set(counts.values())) > 1:
        yield f"STAGES_PLANNED = {counts}  # the number of stages in the plan of every rank"
    if world.misplan is not None and world.misplan.how in ("metadata", "shape", "dtype"):
        yield from _declared(case)


def _declared(case: Case) -> Iterator[str]:
    """What is declared of the stages: shapes and dtypes of inputs and outputs."""
    rows = []
    for s, said in declared_of(case).items():
        sides = []
        for specs in (said.inputs, said.outputs):
            shown = [f"example({list(one.shape)}, {one.dtype}, {one.requires_grad})" for one in specs]
            sides.append(f"({', '.join(shown)}{',' if len(shown) == 1 else ''})")
        rows.append(f"    {s}: ({', '.join(sides)}),")
    yield ""
    yield ""
    yield "def example(shape, dtype, requires_grad):"
    yield '    """What PipelineStage takes as input_args and output_args: with it no shapes are exchanged."""'
    yield '    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=requires_grad)'
    yield ""
    yield ""
    yield "DECLARED = {"
    yield from rows
    yield "}"
