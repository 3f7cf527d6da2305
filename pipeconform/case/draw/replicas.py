"""Drawing replicas of the pipeline: how many, on which ranks, how they are kept in step, and what is hard about it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import structs

from pipeconform.adapter import Feature, placement_of
from pipeconform.case import blocks
from pipeconform.case.case import Model, Optimize, Sgd, Stage, Step, Train, World, Zero
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import some_m
from pipeconform.case.focus import Focus
from pipeconform.case.perturbations import AnyPerturbation, Perturbation, SlowLink
from pipeconform.case.replicas import Replicas
from pipeconform.case.replication_claims import options_of

__all__ = ["optimizer_for", "replica_delays", "replicated_model", "replicated_program", "replicated_world"]


def replicated_world(d: Drawing, p: int) -> World:
    """The replicas' pipelines one after the other, or interleaved, and how their stages are wrapped."""
    size = p * d.num_replicas
    one_by_one = [tuple(range(r * p, (r + 1) * p)) for r in range(d.num_replicas)]
    interleaved = [tuple(range(r, size, d.num_replicas)) for r in range(d.num_replicas)]
    first, *others = d.pick([one_by_one, interleaved])
    return World(
        size=size,
        pipeline_ranks=first,
        replicas=Replicas(others=tuple(others), **_wrapping(d)),
    )


def _wrapping(d: Drawing) -> dict[str, Any]:
    claim = d.limits.capabilities.data_parallel
    assert claim is not None
    if d.focus in (Focus.REPLICAS, Focus.REPLICA_TIES, Focus.REPLICA_NORMS):
        return {"wrapper": "ddp"}
    if d.focus is Focus.HOOK_RAISES:
        return {"wrapper": "ddp", "hook": True}
    if d.focus is Focus.SHARDED:
        return {"wrapper": "fully_shard", "nested": "nested" in claim.options and d.pick([False, True])}
    if d.focus is Focus.REPLICA_OPTIONS:
        return d.pick(options_of(claim))
    return {"wrapper": d.pick(claim.wrappers)}


def replicated_model(d: Drawing, model: Model, world: World) -> tuple[Model, World]:
    """Add to the model what makes averaging hard, where that is the focus."""
    if d.focus is Focus.REPLICA_TIES:
        return structs.replace(model, tied=d.pick(_on_two_ranks(d, len(model.stages)))), world
    if d.focus is Focus.REPLICA_NORMS:
        s = d.pick(range(len(model.stages)))
        stage = Stage(blocks=(*model.stages[s].blocks, blocks.SyncedNorm()))
        return structs.replace(model, stages=(*model.stages[:s], stage, *model.stages[s + 1 :])), world
    if d.focus is not Focus.REPLICA_CONTENTS or world.replicas is None:
        return model, world
    capabilities = d.limits.capabilities
    claim, features = capabilities.data_parallel, d.features
    assert claim is not None
    sharded = world.replicas.wrapper == "fully_shard"
    finds = "find_unused" in claim.options and not sharded
    table = ["nothing"] if Feature.VARYING_MICROBATCHES in features else []
    table += ["frozen block", "frozen stage"] if Feature.FROZEN in features else []
    table += ["buffers"] if Feature.BUFFERS in features else []
    if Feature.UNUSED_PARAMETERS in features:
        table += ["unused"] if finds or sharded else []
        table += ["branch", "branch", "branch"] if finds else []
    what, s = d.pick(table or ["nothing"]), d.pick(range(len(model.stages)))
    old = model.stages[s]
    stage = {
        "nothing": old,
        "frozen block": Stage(blocks=(blocks.Linear(frozen=True), *old.blocks)),
        "frozen stage": Stage(blocks=old.blocks, frozen=True) if len(model.stages) > 1 else old,
        "buffers": Stage(blocks=(*old.blocks, blocks.BatchNorm())),
        "unused": Stage(blocks=(*old.blocks, blocks.Unused())),
        "branch": Stage(blocks=(*old.blocks, blocks.Branch())),
    }[what]
    stages = (*model.stages[:s], stage, *model.stages[s + 1 :])
    if what in ("unused", "branch") and finds:
        world = structs.replace(world, replicas=structs.replace(world.replicas, find_unused=True))
    return structs.replace(model, stages=stages), world


def _on_two_ranks(d: Drawing, num_stages: int) -> list[tuple[int, int]]:
    """Two stages of different ranks: one rank's stages would share a parameter that two wrappers know."""
    owners = placement_of(d.claim.placement, num_ranks=d.num_ranks, num_stages=num_stages)
    pairs = [(a, b) for a in range(num_stages) for b in range(a + 1, num_stages)]
    return [(a, b) for a, b in pairs if owners[a] != owners[b]]


def replica_delays(d: Drawing, *, num_ranks: int, num_stages: int, world: World) -> World:
    """A replica that is late, in its computations or with its part of a reduction."""
    replica = d.pick(range(len(world.pipelines)))
    moments: list[Literal["before", "after"]] = ["before", "after"]
    late: AnyPerturbation
    match d.pick(["reduction", "reduction", "loss", "backward"]):
        case "reduction":
            milliseconds = d.pick([2, 10, 30])
            late = SlowLink(
                rank=d.pick(range(num_ranks)), side="reduce", when=d.pick(moments), milliseconds=milliseconds
            )
        case "loss":
            late = Perturbation(stage=num_stages - 1, when="after", milliseconds=5)
        case _:
            late = Perturbation(
                stage=d.pick(range(num_stages)), part="backward", when=d.pick(moments), milliseconds=5
            )
    return structs.replace(world, perturbations=(structs.replace(late, replica=replica),))


def replicated_program(
    d: Drawing, train: Train, model: Model, world: World, *, num_ranks: int, stages_per_rank: int
) -> tuple[Step, ...]:
    """Two steps or more: with the optimizer between them, with another m, or adding up."""
    if any(isinstance(block, blocks.Branch) for stage in model.stages for block in stage.blocks):
        # of few microbatches it is likely that a replica's use a branch and another one's do not
        rows, m = train.batch_size // train.num_microbatches, min(some_m(d.claim, num_ranks, stages_per_rank))
        train = structs.replace(train, batch_size=rows * m, num_microbatches=m)
    zero = Zero(set_to_none=True)
    claim = d.limits.capabilities.data_parallel
    assert claim is not None
    plain: tuple[Step, ...] = (train, zero, train)
    if d.focus is Focus.REPLICA_TIES:
        return ((train, Optimize(), zero) * d.pick([2, 3, 4]))[:-1]
    if d.focus is Focus.REPLICA_OPTIONS and claim.accumulation:
        adding: list[tuple[Step, ...]] = [(train, train), (train, Zero(set_to_none=False), train, train)]
        return d.pick(
            [plain, *adding] if world.replicas is not None and world.replicas.has_options else adding
        )
    if d.focus is Focus.REPLICA_CONTENTS and Feature.VARYING_MICROBATCHES in d.features:
        m = train.num_microbatches
        others = [k for k in some_m(d.claim, num_ranks, stages_per_rank) if k != m]
        k = d.pick(others or [m])
        other = structs.replace(train, batch_size=train.batch_size // m * k, num_microbatches=k)
        return d.pick([(train, zero, other), (train, zero, other, zero, train)])
    if d.focus in (Focus.REPLICAS, Focus.SHARDED) and Feature.OPTIMIZER in d.features:
        return d.pick([plain, (train, Optimize(), zero, train), ((train, Optimize(), zero) * 3)[:-1]])
    return plain


def optimizer_for(program: tuple[Step, ...]) -> Sgd | None:
    """What the program's optimizer steps need."""
    return Sgd(lr=0.125) if any(isinstance(step, Optimize) for step in program) else None
