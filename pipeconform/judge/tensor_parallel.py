"""Stages that are cut over ranks, boundary tensors that cross as parts, and statistics that replicas share.

Here another order of additions is right, in the forward too: values that differ from the oracle's bits must stay
within the bounds of running error analysis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from pipeconform.case.tensor_parallel import cut_dim, layers_of
from pipeconform.judge import training
from pipeconform.judge.data_parallel import part_of
from pipeconform.judge.evidence import Evidence, Finding, Numbers, shown_step
from pipeconform.judge.forward import holders, leaves_by_microbatch, outputs_are_due
from pipeconform.observe.array import Array
from pipeconform.observe.observation import (
    Reference,
    Sharding,
    StepExpected,
    StepShown,
    Structure,
)
from pipeconform.plural import plural

__all__ = [
    "as_handed",
    "boundary_cut",
    "cut_as_planned",
    "placements_kept",
    "values_within_bounds",
]


def values_within_bounds(evidence: Evidence) -> Iterator[Finding]:
    """Outputs are within their bounds, and so are losses, gradients and updates."""
    yield from _outputs(evidence)
    yield from training.losses_and_gradients_are_right(evidence)
    yield from training.updates_are_right(evidence)


def _outputs(evidence: Evidence) -> Iterator[Finding]:
    numbers = Numbers(evidence=evidence)
    for expected in evidence.runs() if outputs_are_due(evidence) else ():
        for one in holders(evidence):
            output = shown_step(one, expected.step).output
            where: dict[str, Any] = {"step": expected.step, "rank": one.rank}
            if output is None:
                text = "the rank that owns the last stage returned no output"
                yield Finding(kind="no output", message=text, **where)
                continue
            for k, right, mine in leaves_by_microbatch(evidence, expected, one, output):
                if len(mine) != len(right):
                    text = (
                        f"the output of microbatch {k} has {plural(len(mine), 'tensor')}, "
                        f"the reference's has {len(right)}"
                    )
                    yield Finding(kind="number of outputs", message=text, microbatch=k, **where)
                for position, (a, b) in enumerate(zip(right, mine, strict=False)):

                    def bound(
                        reference: Reference, step: int = expected.step, k: int = k, at: int = position
                    ) -> Array | None:
                        found = reference.steps[step].output_bounds
                        return found[k][at] if found else None

                    mismatch = numbers.differs(a, b, bound)
                    if mismatch is not None:
                        text = f"the output of microbatch {k} is not the reference's\n{mismatch.describe()}"
                        kind = f"output {mismatch.kind}"
                        yield Finding(kind=kind, message=text, microbatch=k, mismatch=mismatch, **where)


def cut_as_planned(evidence: Evidence, rank: int, step: StepShown, s: int) -> Iterator[Finding]:
    """The last cut of a parameter is the plan's, at this rank's place, and its gradient is cut in the same way."""
    case = evidence.case
    tensor, world = case.world.tensor, case.world
    assert tensor is not None
    number = world.pipeline_of(rank)
    assert number is not None
    layers, part = layers_of(tensor, case.model, s), number // world.num_replicas
    held, cuts = step.parameter_shards.get(s, {}), step.gradient_shards.get(s, {})
    gradients = step.gradients.get(s, {})
    for name in step.parameters.get(s, {}):
        evidence.compared()
        dim, mine = cut_dim(layers, name), held.get(name)
        wanted = None if dim is None else (dim, world.num_tensor_ranks, part)
        where: dict[str, Any] = {"step": step.step, "rank": rank, "stage": s}
        if mine is None:
            text = f"parameter {name} of stage {s} is a plain tensor on rank {rank}: nothing says which part it is"
            yield Finding(kind="not cut", message=text, **where)
            return
        if wanted != _over_parts(mine, world.num_replicas):
            text = (
                f"parameter {name} of stage {s} is {_shown(mine)} on rank {rank}, which has part {part} of "
                f"{world.num_tensor_ranks}; the plan cuts it {'nowhere' if dim is None else f'in dimension {dim}'}"
            )
            yield Finding(kind="cut otherwise", message=text, **where)
            return
        cut = cuts.get(name)
        # where all ranks have the whole parameter, its gradient may still be partial
        waits = cut is not None and cut.partial and not mine.cuts
        if gradients.get(name) is not None and cut != mine and not waits:
            how = "a plain tensor" if cut is None else _shown(cut)
            text = f"parameter {name} of stage {s} is {_shown(mine)} on rank {rank}, its gradient {how}"
            yield Finding(kind="gradient cut otherwise", message=text, **where)
            return


def _over_parts(held: Sharding, num_replicas: int) -> tuple[int, int, int] | None:
    """How a parameter is cut over the axis of the parts, which is the last of the mesh and cut first."""
    if len(held.mesh) == 1 and num_replicas > 1:
        return None
    placement = held.placements[-1]
    found = [cut for cut in held.cuts if placement.startswith("S(") and cut[1] == held.mesh[-1]]
    strided = held.placements[0].startswith("_S")
    return (found[0] if strided or len(held.mesh) == 1 else found[-1]) if found else None


def _shown(held: Sharding) -> str:
    return f"{', '.join(held.placements)} of {list(held.shape)}"


def _with(evidence: Evidence, expected: Reference) -> Evidence:
    import dataclasses

    return dataclasses.replace(evidence, expected=expected)


def boundary_cut(evidence: Evidence, part: int) -> Sharding:
    """How a boundary tensor is cut for one rank, with its shape left open."""
    tensor, model = evidence.case.world.tensor, evidence.case.model
    assert tensor is not None
    dim = {"whole": None, "sequence": 1, "width": 2 if model.sequence else 1}[tensor.boundary]
    num = evidence.case.world.num_tensor_ranks
    return Sharding(
        placements=("R" if dim is None else f"S({dim})",),
        mesh=(num,),
        dim=dim,
        index=part,
        shape=(),
        cuts=() if dim is None else ((dim, num, part),),
    )


def as_handed(step: StepExpected, cut: Sharding) -> StepExpected:
    """The same step, with the inputs of all stages but the first as parts."""

    def handed(value: Structure) -> Structure:
        array = None if value.array is None else part_of(value.array, cut)
        return structs.replace(value, array=array, placements=cut.placements)

    inputs = tuple(
        tuple(tuple(map(handed, one)) if s else one for one in microbatches)
        for s, microbatches in enumerate(step.inputs)
    )
    return structs.replace(step, inputs=inputs)


def placements_kept(evidence: Evidence, cut: Sharding) -> Iterator[Finding]:
    """Inputs are still `DTensor`s with the same placements; at most one finding per rank, stage and step."""
    words: Mapping[tuple[str, ...] | None, str] = {None: "a plain tensor"}
    for expected in evidence.runs():
        for s in range(1, evidence.case.num_stages):
            for one in evidence.owners(s):
                seen = [f for f in shown_step(one, expected.step).forwards if f.stage == s]
                evidence.compared(len(seen))
                wrong = next((f for f in seen if f.inputs and f.inputs[0].placements != cut.placements), None)
                if wrong is None:
                    continue
                found = wrong.inputs[0].placements
                how = words.get(found) or f"a DTensor placed {', '.join(found or ())}"
                shape = [] if wrong.inputs[0].array is None else list(wrong.inputs[0].array.shape)
                text = (
                    f"the input of stage {s} is {how} (here {shape}) on rank {one.rank}; it was handed over as a "
                    f"DTensor placed {', '.join(cut.placements)}"
                )
                kind = "placement lost" if found is None else "placed otherwise"
                yield Finding(kind=kind, message=text, step=expected.step, rank=one.rank, stage=s)
