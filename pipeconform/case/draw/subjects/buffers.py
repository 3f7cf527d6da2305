"""Batch norms, whose running statistics are buffers."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

BUFFERS = Subject(
    focus=Focus.BUFFERS,
    needs=frozenset({Feature.BUFFERS}),
    found=has(blocks.BatchNorm),
    contents=in_some_stage(blocks.BatchNorm()),
    without=without_blocks(blocks.BatchNorm),
    control="without the batch norm",
)
