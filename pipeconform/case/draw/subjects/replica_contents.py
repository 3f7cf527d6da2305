"""Replicas that do not all use the same parameters, or whose runs differ in size."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Stage, Step, Train, Zero
from pipeconform.case.draw.changes import (
    changed_world,
    is_frozen,
    of_one_size,
    replaced,
    sizes_of,
    unfrozen,
    without_blocks,
)
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import any_wrapper, claim_of, replicas_of, replicated, with_one_pipeline
from pipeconform.case.draw.sizes import some_m
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim


def _drawn(d: Drawing, draft: Draft) -> Draft:
    model, world, features, num = draft.model, draft.world, d.features, d.num_stages
    replicas = world.replicas
    assert replicas is not None
    sharded = replicas.wrapper == "fully_shard"
    finds = "find_unused" in claim_of(d).options and not sharded
    table = ["nothing"] if Feature.VARYING_MICROBATCHES in features else []
    table += ["frozen block", "frozen stage"] if Feature.FROZEN in features else []
    table += ["buffers"] if Feature.BUFFERS in features else []
    if Feature.UNUSED_PARAMETERS in features:
        table += ["unused"] if finds or sharded else []
        table += ["branch", "branch", "branch"] if finds else []
    what, s = d.pick(table or ["nothing"]), d.pick(range(num))
    old = model.stages[s]
    stage = {
        "nothing": old,
        "frozen block": Stage(blocks=(blocks.Linear(frozen=True), *old.blocks)),
        "frozen stage": Stage(blocks=old.blocks, frozen=True) if num > 1 else old,
        "buffers": _appended(old, blocks.BatchNorm()),
        "unused": _appended(old, blocks.Unused()),
        "branch": _appended(old, blocks.Branch()),
    }[what]
    if what in ("unused", "branch") and finds:
        world = structs.replace(world, replicas=structs.replace(replicas, find_unused=True))
    changed = replaced(
        draft,
        model=structs.replace(model, stages=(*model.stages[:s], stage, *model.stages[s + 1 :])),
        world=world,
    )
    return replaced(changed, program=_program(d, changed.train, few=what == "branch"))


def _appended(stage: Stage, block: blocks.AnyBlock) -> Stage:
    """The stage with a block more, in front of a head, behind which tensors have another width."""
    *others, last = stage.blocks
    behind = [block, last] if isinstance(last, blocks.Head) else [last, block]
    return Stage(blocks=(*others, *behind))


def _program(d: Drawing, train: Train, *, few: bool) -> tuple[Step, ...]:
    """Two or three steps, with another m if that is claimed."""
    numbers = some_m(d.claim, d.num_ranks, d.stages_per_rank)
    rows = train.batch_size // train.num_microbatches
    if few:
        # with few microbatches, it is likely that one replica uses a branch and another does not
        train = structs.replace(train, batch_size=rows * min(numbers), num_microbatches=min(numbers))
    zero = Zero(set_to_none=True)
    if Feature.VARYING_MICROBATCHES not in d.features:
        return (train, zero, train)
    m = train.num_microbatches
    k = d.pick([k for k in numbers if k != m] or [m])
    other = structs.replace(train, batch_size=rows * k, num_microbatches=k)
    programs: list[tuple[Step, ...]] = [(train, zero, other), (train, zero, other, zero, train)]
    return d.pick(programs)


def _is_claimed(claim: ScheduleClaim, own: Capabilities) -> bool:
    any_of = {Feature.VARYING_MICROBATCHES, Feature.FROZEN, Feature.BUFFERS}
    finds = own.data_parallel is not None and "find_unused" in own.data_parallel.options
    return bool(own.features & any_of) or (finds and Feature.UNUSED_PARAMETERS in own.features)


def _found(case: Case) -> bool:
    odd = case.has(blocks.BatchNorm, blocks.Unused, blocks.Branch)
    return odd or is_frozen(case) or len(sizes_of(case)) > 1


def _without(case: Case) -> Case:
    found = without_blocks(blocks.BatchNorm, blocks.Unused, blocks.Branch)(unfrozen(of_one_size(case)))
    return changed_world(found, replicas=structs.replace(replicas_of(case), find_unused=False))


REPLICA_CONTENTS = Subject(
    focus=Focus.REPLICA_CONTENTS,
    form="replicas",
    claimed=_is_claimed,
    found=_found,
    rarity=2,
    world=replicated(any_wrapper),
    program=_drawn,
    without=_without,
    control="with plain blocks that are all trained and used, and with every run of the same size",
    further=(("with one replica", with_one_pipeline),),
)
