"""Draws replicas of the pipeline: their ranks, and how their stages are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import structs

from pipeconform.case.case import Case, World
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.replicas import Replicas
from pipeconform.claims import DataParallelClaim

__all__ = ["any_wrapper", "claim_of", "in_ddp", "replicas_of", "replicated", "with_one_pipeline"]

Wrapping = Callable[[Drawing], dict[str, Any]]
"""The wrapper and its options, as fields of `Replicas`."""


def replicated(wrapping: Wrapping) -> Callable[[Drawing], World]:
    """A world with the replicas' pipelines one after the other, or interleaved."""

    def world(d: Drawing) -> World:
        p, num = d.num_ranks, d.num_replicas
        one_by_one = [tuple(range(r * p, (r + 1) * p)) for r in range(num)]
        interleaved = [tuple(range(r, p * num, num)) for r in range(num)]
        first, *others = d.pick([one_by_one, interleaved])
        return World(
            size=p * num,
            pipeline_ranks=first,
            replicas=Replicas(others=tuple(others), **wrapping(d)),
        )

    return world


def in_ddp(d: Drawing) -> dict[str, Any]:
    """Every stage in DistributedDataParallel, without options."""
    return {"wrapper": "ddp"}


def any_wrapper(d: Drawing) -> dict[str, Any]:
    """Any claimed wrapper, without options."""
    return {"wrapper": d.pick(claim_of(d).wrappers)}


def claim_of(d: Drawing) -> DataParallelClaim:
    """The data-parallel claim, which must exist."""
    claim = d.capabilities.data_parallel
    assert claim is not None
    return claim


def replicas_of(case: Case) -> Replicas:
    """The replicas of a case, which must exist."""
    assert case.world.replicas is not None
    return case.world.replicas


def with_one_pipeline(case: Case) -> Case:
    """The case with only its first pipeline, in a world of that size."""
    ranks = tuple(range(case.num_ranks))
    world = World(size=case.num_ranks, pipeline_ranks=ranks, placement=case.world.placement)
    return structs.replace(case, world=world)
