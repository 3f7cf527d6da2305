"""Modules under torch.compile."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

COMPILED = Subject(
    focus=Focus.COMPILED,
    needs=frozenset({Feature.COMPILED}),
    found=has(blocks.Compiled),
    contents=in_some_stage(blocks.Compiled(), blocks.Compiled(how="in_place")),
    without=without_blocks(blocks.Compiled, instead=(blocks.Mlp(),)),
    control="without compilation",
)
