"""Whole models that a front end splits into stages."""

from __future__ import annotations

from pipeconform.case.draw.changes import changed_model
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.whole import as_whole
from pipeconform.case.focus import Focus

WHOLE = Subject(
    focus=Focus.WHOLE,
    form="whole",
    found=lambda case: True,
    rarity=0,
    finish=lambda d, case: as_whole(d, case, alike=True),
    without=lambda case: changed_model(case, split=None),
    control="with the stages given one by one",
)
