"""Two linear maps of one module that share their weight or their bias."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

TIED = Subject(
    focus=Focus.TIED,
    needs=frozenset({Feature.SHARED_IN_STAGE}),
    found=has(blocks.Tied),
    contents=in_some_stage(blocks.Tied(), blocks.Tied(what="bias")),
    without=without_blocks(blocks.Tied, instead=(blocks.Linear(), blocks.Linear())),
    control="with two linear maps that share nothing",
)
