"""A linear map that is applied twice in a stage."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

SHARED = Subject(
    focus=Focus.SHARED,
    needs=frozenset({Feature.SHARED_IN_STAGE}),
    found=has(blocks.Shared),
    contents=in_some_stage(blocks.Shared()),
    without=without_blocks(blocks.Shared, instead=(blocks.Linear(),)),
    control="with the shared map applied once",
)
