"""Parameters that some or all microbatches do not use."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

UNUSED = Subject(
    focus=Focus.UNUSED,
    needs=frozenset({Feature.UNUSED_PARAMETERS}),
    trains=True,
    found=has(blocks.Unused, blocks.Branch),
    contents=in_some_stage(blocks.Unused(), blocks.Branch()),
    without=without_blocks(blocks.Unused, blocks.Branch),
    control="without the parameters that some microbatches do not use",
)
