"""Batches that are changed in place: the input by the first stage, the target by the loss function."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model
from pipeconform.case.draw.changes import beginning, replaced, with_other_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus


def _changed(d: Drawing, draft: Draft) -> Draft:
    squares = "mse" in d.capabilities.losses
    what = d.pick(["input", "target", "input and target"] if squares else ["input"])
    model = _rescaling(draft.model) if "input" in what else draft.model
    return replaced(draft, model=model, loss=structs.replace(draft.loss, in_place="target" in what))


def _rescaling(model: Model) -> Model:
    begun = beginning(model, 0, blocks.Rescaled(), replacing=1)
    return structs.replace(begun, tokens=False, input_requires_grad=False)


def _left_alone(case: Case) -> Case:
    model = with_other_blocks(case.model, {blocks.Rescaled: (blocks.Linear(),)})
    return structs.replace(case, model=model, loss=structs.replace(case.loss, in_place=False))


CHANGED_BATCH = Subject(
    focus=Focus.CHANGED_BATCH,
    found=lambda case: case.has(blocks.Rescaled) or case.loss.in_place,
    contents=_changed,
    without=_left_alone,
    control="with a batch that nothing changes in place",
)
