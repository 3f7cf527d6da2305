"""Modules that store on themselves what their backward needs."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

STATEFUL = Subject(
    focus=Focus.STATEFUL,
    needs=frozenset({Feature.CUSTOM_FUNCTIONS}),
    trains=True,
    found=has(blocks.Stateful),
    contents=in_some_stage(blocks.Stateful()),
    without=without_blocks(blocks.Stateful, instead=(blocks.Linear(),)),
    control="with a linear map that keeps no state",
)
