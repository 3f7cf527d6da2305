"""Cases about front ends: a plain case becomes one whose model is given whole, to be split.

The way in which it is split is drawn inside the case, and what the model contains beside a chain of blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import structs

from pipeconform.adapter import Feature
from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Case, Eval, Kwarg, Model, Split, Stage, Step, Train, Zero
from pipeconform.case.focus import Focus

if TYPE_CHECKING:
    from pipeconform.case.draw.drawing import (
        Drawing,  # with Hypothesis, which whoever only judges does without
    )

__all__ = ["as_whole", "subject_of"]

By = Literal["annotations", "policy", "points"]
Wrong = Literal["", "unknown", "uncalled", "empty", "branch"]


def as_whole(d: Drawing, case: Case) -> Case:
    """`case`, drawn plain, with its model given whole and with what the focus is about."""
    tracing = d.limits.capabilities.tracing
    assert tracing is not None
    by: By = d.pick(tracing.splits)
    wrong: Wrong = ""
    if d.focus is Focus.WHOLE_WRONG:
        by, wrong = _mistake(d, by, points="points" in tracing.splits)
    after = by == "points" and d.pick([False, True])
    inside = by == "annotations" and d.pick([False, True])
    split = Split(by=by, inside=inside, after=after, wrong=wrong)
    model = structs.replace(case.model, split=split)
    if by == "policy" and d.focus in (Focus.WHOLE, Focus.WHOLE_CONTENTS) and d.pick([False, True]):
        model = structs.replace(model, stages=(Stage(blocks=(blocks.Linear(),)),) * len(model.stages))
    match d.focus:
        case Focus.WHOLE_CONTENTS:
            model = _with_contents(d, model, case.stages_per_rank)
        case Focus.WHOLE_SHAPES if model.sequence and d.pick([True, False]):
            shorter = d.pick([True, False])
            other = structs.replace(split, longer=not shorter, shorter_example=shorter)
            model = structs.replace(model, split=other)
    changed = structs.replace(case, model=model)
    return structs.replace(changed, program=_program(d, changed))


def subject_of(case: Case) -> Focus:
    """What a case with a whole model is about."""
    model, split = case.model, case.model.split
    assert split is not None
    if split.wrong:
        return Focus.WHOLE_WRONG
    if (
        split.longer
        or split.shorter_example
        or len({(run.batch_size, run.num_microbatches) for run in case.runs}) > 1
    ):
        return Focus.WHOLE_SHAPES
    if split.reused or split.skip or split.tied or model.kwargs or case.has(blocks.BatchNorm, blocks.Shared):
        return Focus.WHOLE_CONTENTS
    return Focus.WHOLE


def _with_contents(d: Drawing, model: Model, stages_per_rank: int) -> Model:
    """One of the things that a front end must follow through the model's code."""
    tracing, capabilities = d.limits.capabilities.tracing, d.limits.capabilities
    assert tracing is not None
    assert model.split is not None
    num, split = len(model.stages), model.split
    table = ["reused"]
    table += ["shared"] if Feature.SHARED_IN_STAGE in d.features else []
    table += ["buffers"] if Feature.BUFFERS in d.features else []
    told_apart = capabilities.kwargs_scope != "rank" or stages_per_rank == 1
    if Feature.KWARGS in d.features and tracing.kwargs != "none" and split.by != "policy" and told_apart:
        table.append("kwargs")
    table += ["skip", "skip"] if tracing.skips and num > 2 else []
    if (
        tracing.tied and num > 1
    ):  # a policy may put both ends into one stage, where a tie is an ordinary sharing
        table += ["tied"] if split.by == "policy" else ["tied", "tied"]
    match d.pick(table):
        case "reused":
            return structs.replace(model, split=structs.replace(split, reused=True))
        case "skip":
            return structs.replace(model, split=structs.replace(split, skip=True))
        case "tied":
            return structs.replace(model, split=structs.replace(split, tied=True))
        case "kwargs":
            stages = range(num) if tracing.kwargs == "all" else range(1)
            kinds: list[Literal["tensor", "number"]] = (
                ["tensor", "number"] if tracing.number_kwargs else ["tensor"]
            )
            kwargs = tuple(Kwarg(stage=s, kind=d.pick(kinds)) for s in stages)
            return structs.replace(model, kwargs=d.pick([kwargs[:1], kwargs[-1:], kwargs]))
        case "shared":
            return _insert(model, d.pick(range(num)), blocks.Shared())
    return _insert(model, d.pick(range(num)), blocks.BatchNorm())


def _mistake(d: Drawing, by: By, *, points: bool) -> tuple[By, Wrong]:
    """What no front end can split, and the way in which it is asked to; most mistakes are about points."""
    kinds: list[Wrong] = ["unknown", "uncalled", "empty", "unknown"] if points else []
    wrong = d.pick([*kinds, "branch"])
    return ("points" if wrong != "branch" else by), wrong


def _program(d: Drawing, case: Case) -> tuple[Step, ...]:
    """Two runs: of other sizes where shapes are the subject, the second an evaluation where modes are."""
    zero, first = Zero(set_to_none=True), case.runs[0]
    run: Train | Eval = first
    split = case.model.split
    if d.focus is Focus.WHOLE_SHAPES and split is not None and not (split.longer or split.shorter_example):
        m, size = first.num_microbatches, first.batch_size
        run = structs.replace(first, batch_size=d.pick([size + m, *([size - m] if size > m else [])]))
    if isinstance(first, Eval):
        return (first, run)
    # neighbouring stages of one rank are a subject of their own in evaluation
    modes = case.has(blocks.BatchNorm) and case.stages_per_rank == 1 and Feature.EVAL in d.features
    if modes and d.pick([False, True]):
        return (first, Eval(batch_size=first.batch_size, num_microbatches=first.num_microbatches))
    return (first, zero, run)


def _insert(model: Model, stage: int, block: AnyBlock) -> Model:
    """`model` with `block` behind the others of one stage."""
    stages = list(model.stages)
    stages[stage] = Stage(blocks=(*stages[stage].blocks, block), frozen=stages[stage].frozen)
    return structs.replace(model, stages=tuple(stages))
