"""Model code that a front end must follow: reused blocks, skips, ties, buffers and keyword arguments."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Kwarg, KwargKind, Model
from pipeconform.case.draw.changes import appended, changed_blocks, changed_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.whole import as_whole, split_of, tracing_of
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _drawn(d: Drawing, case: Case) -> Case:
    whole = as_whole(d, case, alike=True)
    changed = structs.replace(whole, model=_with_contents(d, whole.model))
    # evaluation with several stages per rank is a subject of its own
    modes = changed.has(blocks.BatchNorm) and d.stages_per_rank == 1 and Feature.EVAL in d.features
    first = changed.runs[0]
    if d.claim.trains and modes and d.pick([False, True]):
        second = Eval(batch_size=first.batch_size, num_microbatches=first.num_microbatches)
        return structs.replace(changed, program=(first, second))
    return changed


def _with_contents(d: Drawing, model: Model) -> Model:
    tracing, split, num = tracing_of(d), model.split, len(model.stages)
    assert split is not None
    table = ["reused"]
    table += ["shared"] if Feature.SHARED_IN_STAGE in d.features else []
    table += ["buffers"] if Feature.BUFFERS in d.features else []
    told_apart = d.capabilities.kwargs_scope != "rank" or d.stages_per_rank == 1
    if Feature.KWARGS in d.features and tracing.kwargs != "none" and split.by != "policy" and told_apart:
        table.append("kwargs")
    table += ["skip", "skip"] if tracing.skips and num > 2 else []
    if tracing.tied and num > 1:
        # a policy may put both ends into one stage, where the tie is ordinary sharing
        table += ["tied"] if split.by == "policy" else ["tied", "tied"]
    match d.pick(table):
        case "reused" | "skip" | "tied" as what:
            return structs.replace(model, split=structs.replace(split, **{what: True}))
        case "kwargs":
            kinds: list[KwargKind] = ["tensor", "number"] if tracing.number_kwargs else ["tensor"]
            stages = range(num) if tracing.kwargs == "all" else range(1)
            kwargs = tuple(Kwarg(stage=s, kind=d.pick(kinds)) for s in stages)
            return structs.replace(model, kwargs=d.pick([kwargs[:1], kwargs[-1:], kwargs]))
        case "shared":
            return appended(model, d.pick(range(num)), blocks.Shared())
    return appended(model, d.pick(range(num)), blocks.BatchNorm())


def _found(case: Case) -> bool:
    split = split_of(case)
    followed = split.reused or split.skip or split.tied or bool(case.model.kwargs)
    return followed or case.has(blocks.BatchNorm, blocks.Shared)


def _without(case: Case) -> Case:
    found = changed_blocks(case, {blocks.BatchNorm: (), blocks.Shared: (blocks.Linear(),)})
    split = structs.replace(split_of(case), reused=False, skip=False, tied=False)
    return changed_model(found, split=split, kwargs=())


WHOLE_CONTENTS = Subject(
    focus=Focus.WHOLE_CONTENTS,
    form="whole",
    found=_found,
    finish=_drawn,
    without=_without,
    control="with a plain chain of blocks",
)
