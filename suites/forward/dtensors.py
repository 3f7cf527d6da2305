"""DTensors: between stages, and in a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec import structs

from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import SEVERAL_STAGES
from pipeconform.judge.data_parallel import replicas_of
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import boundaries_arrive
from pipeconform.judge.judgement import requirement
from pipeconform.judge.tensor_parallel import (
    as_handed,
    batch_cut,
    boundary_cut,
    outputs_placed,
    placements_kept,
    values_within_bounds,
    with_parts_of_outputs,
)
from pipeconform.spec.catalogue import MUST

from ..promises import documented, in_source


@requirement(
    "FWD-19",
    title="DTensor boundaries",
    level=MUST,
    about=(Focus.PLACED,),
    trains=True,
    costly=True,
    condition=SEVERAL_STAGES,
    promise=(
        documented(
            "torch.distributed.tensor documentation, DTensor.from_local",
            "distributed.tensor.html#torch.distributed.tensor.DTensor.from_local",
        ),
        in_source("torch.distributed.pipelining.PipelineStage, get_mesh", "distributed/pipelining/stage.py"),
    ),
)
def dtensors_keep_their_placement(evidence: Evidence) -> Iterator[Finding]:
    """A DTensor that a stage hands over arrives in the next stage as a DTensor on the mesh of the receiving
    ranks, with the same placements and global shape and, on every rank, that rank's own part bit for bit,
    whether the next stage lives on another rank or on the same one; outputs, losses and gradients are the
    reference's. The same holds where the user declares the boundaries.

    Only the local part is sent. An engine that rebuilds the tensor without its placements hands over a part
    as if it were the whole, and nothing fails until some shape does not fit.
    """
    tensor, world = evidence.case.world.tensor, evidence.case.world
    assert tensor is not None
    for number, one in enumerate(replicas_of(evidence)):
        part = number // world.num_replicas
        cut, stages = boundary_cut(evidence, part), range(1, evidence.case.num_stages)
        yield from placements_kept(one, cut, stages=stages)
        steps = tuple(as_handed(step, cut, stages=stages) for step in one.expected.steps)
        right = structs.replace(one.expected, steps=steps)
        yield from boundaries_arrive(dataclasses.replace(one, expected=right))
        yield from values_within_bounds(one)


@requirement(
    "FWD-31",
    title="Batches of DTensors",
    level=MUST,
    about=(Focus.PLACED_BATCH,),
    trains=True,
    costly=True,
    promise=(
        documented(
            "torch.distributed.tensor documentation, sharded programs with the semantics of a single device",
            "distributed.tensor.html",
        ),
        in_source(
            "torch.distributed.pipelining, where a batch is split: the local part is split, and each chunk "
            "is a DTensor with the right global shape",
            "distributed/pipelining/microbatch.py",
        ),
    ),
)
def dtensors_are_split_where_they_lie(evidence: Evidence) -> Iterator[Finding]:
    """A batch whose tensors are DTensors is split into microbatches that are DTensors with the same
    placement: the first stage gets this rank's own part of every microbatch bit for bit, every sample meets its own
    target, however targets are placed, and the merged output is a DTensor again, in the order of the batch. Losses and
    gradients are the reference's.

    Where samples are cut over the ranks, the first samples of a rank's part are not the first of the batch: an engine
    that splits arguments by what a rank has, and targets by what the batch has, trains on pairs that do not belong
    together.
    """
    tensor, world = evidence.case.world.tensor, evidence.case.world
    assert tensor is not None
    for number, one in enumerate(replicas_of(evidence)):
        cut, first = batch_cut(evidence, number // world.num_replicas), range(1)
        yield from placements_kept(one, cut, stages=first)
        yield from outputs_placed(one, cut)
        steps = tuple(as_handed(step, cut, stages=first) for step in one.expected.steps)
        yield from boundaries_arrive(
            dataclasses.replace(one, expected=structs.replace(one.expected, steps=steps))
        )
        wrong = list(values_within_bounds(with_parts_of_outputs(one, cut)))
        # where samples meet the targets of others, all gradients follow from the losses
        yield from [found for found in wrong if found.kind.startswith("loss")] or wrong
