"""Losses with keyword arguments, targets that are classes, and inputs that are tokens."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, LossSpec, Model
from pipeconform.case.draw.changes import beginning, replaced, with_classes, with_other_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature


def kinds(own: Capabilities) -> list[str]:
    """What targets and losses can be about; an implementation with a single loss has fewer."""
    squares, classes = (one in own.losses for one in ("mse", "cross_entropy"))
    kinds = ["classes"] if squares and classes else []
    kinds += ["ignored"] if classes and "sum" in own.reductions else []
    kinds += ["scaled"] if squares and Feature.LOSS_KWARGS in own.features else []
    kinds += ["tokens"] if classes and Feature.TOKENS in own.features else []
    return kinds


def losses(d: Drawing, draft: Draft) -> Draft:
    """Draw cross-entropy over classes (summed, if targets are ignored) or a loss with a keyword argument."""
    kind, model, reduction = d.pick(kinds(d.capabilities)), draft.model, draft.loss.reduction
    if kind == "scaled":
        return replaced(draft, loss=LossSpec(reduction=reduction, scaled=True))
    model = with_tokens(model) if kind == "tokens" else with_classes(model)
    if kind == "ignored":
        return replaced(draft, model=model, loss=LossSpec(kind="cross_entropy", reduction="sum", ignore=True))
    return replaced(draft, model=model, loss=LossSpec(kind="cross_entropy", reduction=reduction))


def with_tokens(model: Model) -> Model:
    """The model with an embedding as its first block, and a last one that gives values for three classes."""
    return with_classes(structs.replace(beginning(model, 0, blocks.Embedding()), tokens=True))


def special(case: Case) -> bool:
    """Whether the case is about its loss: it has classes that the implementation need not have, or an argument."""
    return (case.loss.kind == "cross_entropy" and not case.loss.fixed) or case.loss.scaled


def _plain(case: Case) -> Case:
    plain = with_other_blocks(case.model, {blocks.Head: (), blocks.Embedding: ()})
    model = structs.replace(plain, classes=0, tokens=False)
    return structs.replace(case, model=model, loss=LossSpec(reduction=case.loss.reduction))


TARGETS = Subject(
    focus=Focus.TARGETS,
    trains=True,
    claimed=lambda claim, own: bool(kinds(own)),
    found=special,
    contents=losses,
    without=_plain,
    control="with squared distances as the loss, and without classes or tokens",
)
