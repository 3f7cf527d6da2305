"""Losses that are summed over samples."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import LossSpec
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

SUM = Subject(
    focus=Focus.SUM,
    trains=True,
    claimed=lambda claim, own: "sum" in own.reductions,
    found=lambda case: case.loss.reduction == "sum" and case.loss.kind == "mse",
    contents=lambda d, draft: replaced(draft, loss=LossSpec(reduction="sum")),
    without=lambda case: structs.replace(case, loss=structs.replace(case.loss, reduction="mean")),
    control="with the loss as a mean over samples",
)
