"""Automatic mixed precision."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Eval, Train
from pipeconform.case.draw.changes import changed_steps, replaced
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

AUTOCAST = Subject(
    focus=Focus.AUTOCAST,
    needs=frozenset({Feature.AUTOCAST}),
    # stages that end in different kinds of blocks then return different dtypes
    claimed=lambda claim, own: own.boundary.differ and {"float32", "bfloat16"}.issubset(own.boundary.dtypes),
    found=lambda case: any(run.autocast for run in case.runs),
    dtype=lambda d: "float32",
    contents=lambda d, draft: replaced(
        draft,
        train=structs.replace(draft.train, autocast=True),
        evaluate=structs.replace(draft.evaluate, autocast=True),
    ),
    without=lambda case: changed_steps(case, Train, Eval, autocast=False),
    control="without autocast",
)
