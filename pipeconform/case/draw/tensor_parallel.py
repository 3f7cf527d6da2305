"""Draws stages that are cut over ranks, and tensors between stages that are."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Case, World
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.replicas import Replicas
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.claims import TensorParallelClaim

__all__ = ["Others", "claim_of", "cut", "cut_blocks", "cut_sequences", "cut_widths", "with_whole_stages"]

Others = tuple[tuple[int, ...], ...]


def cut(how: Callable[[Drawing, Others], TensorParallel]) -> Callable[[Drawing], World]:
    """A world with every stage on several ranks: a mesh of pipeline × replicas × parts, or pipelines one by one."""

    def world(d: Drawing) -> World:
        p, num, parts = d.num_ranks, d.num_replicas, d.num_tensor_ranks
        meshed = [
            tuple(place * num * parts + replica * parts + part for place in range(p))
            for part in range(parts)
            for replica in range(num)
        ]
        one_by_one = [tuple(range(n * p, (n + 1) * p)) for n in range(num * parts)]
        pipelines = d.pick([meshed, one_by_one])
        replicas = Replicas(others=tuple(pipelines[1:num]), wrapper="fully_shard") if num > 1 else None
        return World(
            size=p * num * parts,
            pipeline_ranks=pipelines[0],
            replicas=replicas,
            tensor=how(d, tuple(pipelines[num:])),
        )

    return world


def claim_of(d: Drawing) -> TensorParallelClaim:
    """The tensor-parallel claim, which must exist."""
    claim = d.capabilities.tensor_parallel
    assert claim is not None
    return claim


def cut_sequences(d: Drawing, tensor: TensorParallel) -> list[int]:
    """The lengths of sequences to draw from; a sequence that is cut has parts of equal length."""
    if "sequence" in (tensor.stream, tensor.boundary, tensor.batch):
        return [d.num_tensor_ranks, 2 * d.num_tensor_ranks]
    flat, long = d.boundary.min_ndim <= 2, d.boundary.max_ndim > 2
    return [0, 2, 3] if flat and long else [0] if flat else [2, 3]


def cut_widths(d: Drawing, tensor: TensorParallel) -> list[int]:
    """The widths to draw from: parts of maps are equal, but parts of boundary tensors need not be."""
    if tensor.maps:
        return [d.num_tensor_ranks * k for k in (1, 2, 2, 3)]
    return [3, 4, 5, 8]


def cut_blocks(d: Drawing, tensor: TensorParallel, width: int) -> tuple[AnyBlock, ...]:
    """One or two blocks that can be cut, at least one of them with a map."""
    maps: list[AnyBlock] = [blocks.Mlp(), blocks.Linear(), blocks.Linear(bias=False)]
    first = d.pick(maps)
    others = [*maps, blocks.Norm()] if tensor.stream == "sequence" and width > 2 else maps
    return (d.pick(others), first) if d.pick([False, True]) else (first,)


def with_whole_stages(case: Case) -> Case:
    """The case with every stage on one rank; replicas stay, and the remaining ranks are renumbered."""
    world = case.world
    assert world.tensor is not None
    kept = sorted(rank for ranks in world.pipelines[: world.num_replicas] for rank in ranks)
    number = {rank: index for index, rank in enumerate(kept)}
    first, *others = (tuple(number[r] for r in ranks) for ranks in world.pipelines[: world.num_replicas])
    replicas = world.replicas and structs.replace(world.replicas, others=tuple(others))
    closed = structs.replace(world, size=len(kept), pipeline_ranks=first, replicas=replicas, tensor=None)
    return structs.replace(case, world=closed)
