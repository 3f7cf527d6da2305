"""Drawing stages that are cut over ranks, and tensors between stages that are."""

from __future__ import annotations

from pipeconform.adapter import Feature
from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Optimize, Step, Train, World, Zero
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.focus import Focus
from pipeconform.case.replicas import Replicas
from pipeconform.case.tensor_parallel import TensorParallel

__all__ = ["cut_blocks", "cut_program", "cut_sequences", "cut_widths", "cut_world"]


def cut_world(d: Drawing, p: int) -> World:
    """Every stage on several ranks: neighbours, as on a mesh of pipeline × replicas × parts, or a pipeline apart."""
    num, parts = d.num_replicas, d.num_tensor_ranks
    size = p * num * parts
    meshed = [
        tuple(place * num * parts + replica * parts + part for place in range(p))
        for part in range(parts)
        for replica in range(num)
    ]
    one_by_one = [tuple(range(n * p, (n + 1) * p)) for n in range(num * parts)]
    pipelines = d.pick([meshed, one_by_one])
    replicas = Replicas(others=tuple(pipelines[1:num]), wrapper="fully_shard") if num > 1 else None
    return World(
        size=size, pipeline_ranks=pipelines[0], replicas=replicas, tensor=_cut(d, tuple(pipelines[num:]))
    )


def _cut(d: Drawing, others: tuple[tuple[int, ...], ...]) -> TensorParallel:
    claim, boundary = d.limits.capabilities.tensor_parallel, d.limits.capabilities.boundary
    assert claim is not None
    if d.focus is Focus.PLACED:
        return TensorParallel(others=others, boundary=d.pick(claim.boundaries))
    whole = TensorParallel(others=others, maps=d.pick(claim.maps))
    if not claim.sequence or boundary.max_ndim < 3:
        return whole
    return d.pick([whole, TensorParallel(others=others, maps=whole.maps, stream="sequence")])


def cut_sequences(d: Drawing, tensor: TensorParallel) -> list[int]:
    """The lengths of sequences to draw from; one that is cut has parts of equal length."""
    if "sequence" in (tensor.stream, tensor.boundary):
        return [d.num_tensor_ranks, 2 * d.num_tensor_ranks]
    boundary = d.limits.capabilities.boundary
    return (
        [0, 2, 3]
        if boundary.min_ndim <= 2 and boundary.max_ndim > 2
        else [0]
        if boundary.min_ndim <= 2
        else [2, 3]
    )


def cut_widths(d: Drawing, tensor: TensorParallel) -> list[int]:
    """The widths to draw from: parts of maps are equal, those of what crosses need not be."""
    if tensor.maps:
        return [d.num_tensor_ranks * k for k in (1, 2, 2, 3)]
    return [3, 4, 5, 8]


def cut_blocks(d: Drawing, tensor: TensorParallel, width: int) -> tuple[AnyBlock, ...]:
    """One or two blocks that can be cut, one of them with a map at least."""
    maps: list[AnyBlock] = [blocks.Mlp(), blocks.Linear(), blocks.Linear(bias=False)]
    first = d.pick(maps)
    others = [*maps, blocks.Norm()] if tensor.stream == "sequence" and width > 2 else maps
    return (d.pick(others), first) if d.pick([False, True]) else (first,)


def cut_program(d: Drawing, train: Train) -> tuple[Step, ...]:
    """Two steps, with the optimizer between them or without; adding up is a subject of its own."""
    zero = Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(train, zero, train)]
    if d.focus is Focus.TENSOR:
        programs += [(train, Optimize(), zero, train)] * 2 if Feature.OPTIMIZER in d.features else []
    return d.pick(programs)
