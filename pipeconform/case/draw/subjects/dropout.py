"""Dropout, whose masks depend on the random state of the process."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

DROPOUT = Subject(
    focus=Focus.DROPOUT,
    needs=frozenset({Feature.DROPOUT}),
    trains=True,
    found=has(blocks.Dropout),
    contents=in_some_stage(blocks.Dropout()),
    without=without_blocks(blocks.Dropout),
    control="without dropout",
)
