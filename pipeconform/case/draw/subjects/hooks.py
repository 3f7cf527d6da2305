"""Modules with hooks of their own: forward, pre-forward, tensor and post-accumulate-grad hooks."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import has, in_some_stage, without_blocks
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

HOOKS = Subject(
    focus=Focus.HOOKS,
    inside=True,
    needs=frozenset({Feature.USER_HOOKS}),
    found=has(blocks.Hooked, blocks.Accumulating),
    contents=in_some_stage(blocks.Hooked(), blocks.Hooked(), blocks.Accumulating()),
    without=without_blocks(blocks.Hooked, blocks.Accumulating, instead=(blocks.Linear(),)),
    control="with a linear map that has no hooks",
)
