"""Changes that several subjects make to cases, and undo in their controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import structs

from pipeconform.case.blocks import (
    AnyBlock,
    Attention,
    BatchNorm,
    Block,
    Embedding,
    Head,
    Linear,
    Mlp,
    Norm,
    SyncedNorm,
)
from pipeconform.case.case import Case, Eval, Model, Stage, Step, Train, Zero
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Change, Draft

__all__ = [
    "ORDINARY_TENSORS",
    "accumulates",
    "appended",
    "beginning",
    "changed_blocks",
    "changed_model",
    "changed_steps",
    "changed_world",
    "cleared",
    "has",
    "in_some_stage",
    "is_frozen",
    "of_one_size",
    "on_model",
    "replaced",
    "sizes_of",
    "two_runs",
    "unfrozen",
    "with_classes",
    "with_gradients_of_size",
    "with_linear_maps",
    "with_ordinary_tensors",
    "with_other_blocks",
    "without_blocks",
    "without_passages",
]

# --------------------------------------------------------------------------------------------- while drawing


def on_model(change: Callable[[Drawing, Model], Model]) -> Change:
    """A change of the model only."""
    return lambda d, draft: replaced(draft, model=change(d, draft.model))


def in_some_stage(*options: AnyBlock) -> Change:
    """A change that appends one of these blocks to one stage; list a block twice to draw it twice as often."""

    def change(d: Drawing, model: Model) -> Model:
        stage = d.pick(range(len(model.stages)))
        return appended(model, stage, d.pick(options) if len(options) > 1 else options[0])

    return on_model(change)


def appended(model: Model, stage: int, block: AnyBlock) -> Model:
    """The model with a block after the others of one stage."""
    stages = list(model.stages)
    stages[stage] = structs.replace(stages[stage], blocks=(*stages[stage].blocks, block))
    return structs.replace(model, stages=tuple(stages))


def beginning(model: Model, stage: int, block: AnyBlock, *, replacing: int = 0) -> Model:
    """The model with a block before the others of one stage, in the place of the first `replacing` of them."""
    stages = list(model.stages)
    stages[stage] = structs.replace(stages[stage], blocks=(block, *stages[stage].blocks[replacing:]))
    return structs.replace(model, stages=tuple(stages))


def with_linear_maps(model: Model) -> Model:
    """The model with one linear map per stage: in 16 bits bounds allow every gradient behind a norm or many maps.

    Maps of sequences have no bias, see `oracle.kernels.round_once`.
    """

    def with_one(stage: Stage) -> Stage:
        own = [block for block in stage.blocks if isinstance(block, Embedding | Head)]
        bias = not model.sequence and all(block.bias for block in stage.blocks if isinstance(block, Linear))
        at = next((i for i, block in enumerate(own) if isinstance(block, Head)), len(own))
        return structs.replace(stage, blocks=(*own[:at], Linear(bias=bias), *own[at:]))

    return structs.replace(model, stages=tuple(map(with_one, model.stages)))


def with_classes(model: Model) -> Model:
    """The model with a last block that gives values for three classes."""
    return structs.replace(appended(model, len(model.stages) - 1, Head()), classes=3)


def two_runs(d: Drawing, draft: Draft) -> tuple[Step, ...]:
    """The default program: two training steps, or two evaluations."""
    if not d.claim.trains:
        return (draft.evaluate, draft.evaluate)
    return (draft.train, Zero(set_to_none=True), draft.train)


def replaced(draft: Draft, **changes: Any) -> Draft:
    """The draft with other values in some of its fields."""
    return dataclasses.replace(draft, **changes)


# --------------------------------------------------------------------------------------------- of a finished case


def has(*kinds: type[Block]) -> Callable[[Case], bool]:
    """A test for cases with a block of one of these kinds."""
    return lambda case: case.has(*kinds)


def is_frozen(case: Case) -> bool:
    """Whether anything in the model is frozen."""
    return any(stage.frozen or any(block.frozen for block in stage.blocks) for stage in case.model.stages)


def sizes_of(case: Case) -> set[tuple[int, int]]:
    """The sizes of the batches, and the numbers of microbatches."""
    return {(run.batch_size, run.num_microbatches) for run in case.runs}


def changed_model(case: Case, **changes: Any) -> Case:
    """The case with other values in some fields of its model."""
    return structs.replace(case, model=structs.replace(case.model, **changes))


def changed_world(case: Case, **changes: Any) -> Case:
    """The case with other values in some fields of its world."""
    return structs.replace(case, world=structs.replace(case.world, **changes))


def changed_steps(case: Case, *kinds: type[Step], **changes: Any) -> Case:
    """The case with other values in some fields of all steps of these kinds."""
    program = (structs.replace(step, **changes) if isinstance(step, kinds) else step for step in case.program)
    return structs.replace(case, program=tuple(program))


def changed_blocks(case: Case, table: Mapping[type[Block], Iterable[AnyBlock]]) -> Case:
    """The case with blocks replaced by other blocks, or by none, according to `table`."""
    return structs.replace(case, model=with_other_blocks(case.model, table))


def with_other_blocks(model: Model, table: Mapping[type[Block], Iterable[AnyBlock]]) -> Model:
    """The model with blocks replaced by other blocks, or by none, according to `table`.

    A stage that would have no blocks left gets a linear map: one without parameters is another question to engines.
    """

    def changed(stage: Stage) -> Stage:
        found = (table.get(type(block), (block,)) for block in stage.blocks)
        left = tuple(block for some in found for block in some)
        return structs.replace(stage, blocks=left or ((Linear(),) if stage.blocks else ()))

    return structs.replace(model, stages=tuple(map(changed, model.stages)))


def without_blocks(*kinds: type[Block], instead: Iterable[AnyBlock] = ()) -> Callable[[Case], Case]:
    """The control of a subject about blocks: removes them, or puts others in their place."""
    return lambda case: changed_blocks(case, dict.fromkeys(kinds, tuple(instead)))


def without_passages(case: Case) -> Case:
    """The control of a subject about passages: removes them; carried tensors stay."""
    container = case.model.container if case.model.carried else "tensor"
    return changed_model(case, passages=(), container=container)


def with_ordinary_tensors(case: Case) -> Case:
    """The case with a second tensor like the first one between stages, instead of all others."""
    container = "tuple" if case.model.container == "tensor" else case.model.container
    return changed_model(case, carried=("stream",), passages=(), container=container)


ORDINARY_TENSORS = ("with two ordinary tensors between stages", with_ordinary_tensors)
"""A further control of subjects that add a special tensor to the boundaries."""


def unfrozen(case: Case) -> Case:
    """The case with nothing frozen."""
    stages = (
        Stage(blocks=tuple(structs.replace(block, frozen=False) for block in stage.blocks))
        for stage in case.model.stages
    )
    return changed_model(case, stages=tuple(stages))


def accumulates(case: Case) -> bool:
    """Whether there are two training steps without clearing gradients between them."""
    trained = False
    for step in case.program:
        if isinstance(step, Train):
            if trained:
                return True
            trained = True
        elif isinstance(step, Zero):
            trained = False
    return False


def cleared(case: Case) -> Case:
    """The case with gradients set to None before every training step but the first.

    Those that were set to zero, too: an engine to which that does nothing accumulates.
    """
    program: list[Step] = []
    trained = False
    for step in case.program:
        if isinstance(step, Train) and trained:
            program.append(Zero(set_to_none=True))
        program.append(Zero(set_to_none=True) if isinstance(step, Zero) else step)
        trained = isinstance(step, Train) or (trained and not isinstance(step, Zero))
    return structs.replace(case, program=tuple(program))


def of_one_size(case: Case) -> Case:
    """The case with every run the size of the first."""
    size = {name: getattr(case.runs[0], name) for name in ("batch_size", "num_microbatches")}
    return changed_steps(case, Train, Eval, **size)


def with_gradients_of_size(model: Model) -> Model:
    """The model without blocks in which some gradients are zero but for rounding.

    Such are that of a key's bias in attention, and those before a norm of few numbers. Adam divides by the size of
    gradients, so what it makes of these is noise, on which soon everything depends: every bound would be infinite, and
    nothing be judged.
    """
    noisy = (Attention, Norm, BatchNorm, SyncedNorm)
    return with_other_blocks(model, dict.fromkeys(noisy, (Mlp(),)))
