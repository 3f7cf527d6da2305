"""Buffers that forwards change: the running statistics of batch norms, and counts that are replaced."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

BUFFERS = Subject(
    focus=Focus.BUFFERS,
    needs=frozenset({Feature.BUFFERS}),
    found=has(blocks.BatchNorm, blocks.Counting),
    contents=in_some_stage(blocks.BatchNorm(), blocks.Counting(), blocks.Counting(expanded=True)),
    without=without_blocks(blocks.BatchNorm, blocks.Counting),
    control="without the blocks that have buffers",
)
