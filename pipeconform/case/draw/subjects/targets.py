"""Losses with keyword arguments, targets that are classes, and inputs that are tokens."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, LossSpec, Stage
from pipeconform.case.draw.changes import appended, replaced, with_other_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def losses(d: Drawing, draft: Draft) -> Draft:
    """Draw cross-entropy over classes (summed, if targets are ignored) or a loss with a keyword argument."""
    kinds = ["classes"]
    kinds += ["ignored"] if "sum" in d.capabilities.reductions else []
    kinds += ["scaled"] if Feature.LOSS_KWARGS in d.features else []
    kinds += ["tokens"] if Feature.TOKENS in d.features else []
    kind, model, reduction = d.pick(kinds), draft.model, draft.loss.reduction
    if kind == "scaled":
        return replaced(draft, loss=LossSpec(reduction=reduction, scaled=True))
    model = structs.replace(appended(model, len(model.stages) - 1, blocks.Head()), classes=3)
    if kind == "tokens":
        first, *others = model.stages
        first = Stage(blocks=(blocks.Embedding(), *first.blocks))
        model = structs.replace(model, stages=(first, *others), tokens=True)
    if kind == "ignored":
        return replaced(draft, model=model, loss=LossSpec(kind="cross_entropy", reduction="sum", ignore=True))
    return replaced(draft, model=model, loss=LossSpec(kind="cross_entropy", reduction=reduction))


def _plain(case: Case) -> Case:
    plain = with_other_blocks(case.model, {blocks.Head: (), blocks.Embedding: ()})
    model = structs.replace(plain, classes=0, tokens=False)
    return structs.replace(case, model=model, loss=LossSpec(reduction=case.loss.reduction))


TARGETS = Subject(
    focus=Focus.TARGETS,
    trains=True,
    found=lambda case: case.loss.kind == "cross_entropy" or case.loss.scaled,
    contents=losses,
    without=_plain,
    control="with squared distances as the loss, and without classes or tokens",
)
