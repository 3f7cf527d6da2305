"""Stages that are cut over ranks, boundary tensors that cross as parts, and statistics that replicas share.

Here another order of additions is right, in the forward too: values that differ from the oracle's bits must stay
within the bounds of running error analysis.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from pipeconform.adapter import HeldBatch
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
    "batch_cut",
    "boundary_cut",
    "cut_as_planned",
    "outputs_placed",
    "placements_kept",
    "values_within_bounds",
    "with_parts_of_outputs",
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


def boundary_cut(evidence: Evidence, part: int) -> Sharding:
    """How a boundary tensor is cut for one rank, with its shape left open."""
    tensor = evidence.case.world.tensor
    assert tensor is not None
    assert tensor.boundary
    return _cut_of(evidence, tensor.boundary, part)


def batch_cut(evidence: Evidence, part: int) -> Sharding:
    """How arguments and outputs are cut for one rank, with their shape left open."""
    tensor = evidence.case.world.tensor
    assert tensor is not None
    assert tensor.batch
    return _cut_of(evidence, tensor.batch, part)


def _cut_of(evidence: Evidence, held: HeldBatch, part: int) -> Sharding:
    last = 2 if evidence.case.model.sequence else 1
    dim = {"whole": None, "samples": 0, "sequence": 1, "width": last}[held]
    num = evidence.case.world.num_tensor_ranks
    return Sharding(
        placements=("R" if dim is None else f"S({dim})",),
        mesh=(num,),
        dim=dim,
        index=part,
        shape=(),
        cuts=() if dim is None else ((dim, num, part),),
    )


def as_handed(step: StepExpected, cut: Sharding, *, stages: range) -> StepExpected:
    """The same step, with the inputs of these stages as parts."""
    inputs = tuple(
        tuple(tuple(_part(value, cut) for value in one) if s in stages else one for one in microbatches)
        for s, microbatches in enumerate(step.inputs)
    )
    return structs.replace(step, inputs=inputs)


def _part(value: Structure, cut: Sharding) -> Structure:
    if value.array is None:
        return value
    return structs.replace(
        value, array=part_of(value.array, cut), placements=cut.placements, whole=value.array.shape
    )


def placements_kept(evidence: Evidence, cut: Sharding, *, stages: range) -> Iterator[Finding]:
    """Inputs are still `DTensor`s with the same placements; at most one finding per rank, stage and step."""
    for expected in evidence.runs():
        for s in stages:
            for one in evidence.owners(s):
                seen = [
                    f.inputs[0] for f in shown_step(one, expected.step).forwards if f.stage == s and f.inputs
                ]
                whose = f"the input of stage {s}"
                for found in _placed_otherwise(evidence, whose, seen, cut, rank=one.rank):
                    yield dataclasses.replace(found, step=expected.step, stage=s)


def outputs_placed(evidence: Evidence, cut: Sharding) -> Iterator[Finding]:
    """The merged output is a `DTensor` that is placed as the last stage's outputs are, and knows its shape."""
    for expected in evidence.runs() if outputs_are_due(evidence) else ():
        samples = sum(evidence.sizes(expected.step))
        for one in holders(evidence):
            output = shown_step(one, expected.step).output
            seen = () if output is None else (output,)
            where: dict[str, Any] = {"step": expected.step, "rank": one.rank}
            for found in _placed_otherwise(evidence, "the output", seen, cut, rank=one.rank):
                yield dataclasses.replace(found, step=expected.step)
            right = (samples, *_shape_of(expected.outputs[0])[1:])
            if output is not None and output.whole is not None and output.whole != right:
                text = (
                    f"the output says that its whole has the shape {list(output.whole)}; it has {list(right)}"
                )
                yield Finding(kind="output global shape", message=text, **where)


def _shape_of(output: Structure) -> tuple[int, ...]:
    (leaf,) = output.leaves()
    return leaf.shape


def _placed_otherwise(
    evidence: Evidence, whose: str, seen: Sequence[Structure], cut: Sharding, *, rank: int
) -> Iterator[Finding]:
    """The first of these values that is no `DTensor`, or is placed in another way, or has parts that do not fit."""
    evidence.compared(len(seen))
    for value in seen:
        shape = [] if value.array is None else list(value.array.shape)
        if value.placements != cut.placements:
            how = f"a DTensor placed {', '.join(value.placements or ())}"
            text = (
                f"{whose} is {how if value.placements else 'a plain tensor'} (here {shape}) on rank {rank}; it was "
                f"handed over as a DTensor placed {', '.join(cut.placements)}"
            )
            kind = "placed otherwise" if value.placements else "placement lost"
            yield Finding(kind=kind, message=text, rank=rank)
            return


def with_parts_of_outputs(evidence: Evidence, cut: Sharding) -> Evidence:
    """The same evidence, with this rank's parts of the outputs as what is right."""

    def cut_step(step: StepExpected) -> StepExpected:
        bounds = tuple(tuple(part_of(one, cut) for one in of_one) for of_one in step.output_bounds)
        outputs = tuple(_part(output, cut) for output in step.outputs)
        return structs.replace(step, outputs=outputs, output_bounds=bounds)

    def cut_reference(whole: Reference) -> Reference:
        return structs.replace(whole, steps=tuple(map(cut_step, whole.steps)))

    return dataclasses.replace(
        evidence,
        expected=cut_reference(evidence.expected),
        bounded=functools.cache(lambda bounds: cut_reference(evidence.bounded(bounds))),
    )
