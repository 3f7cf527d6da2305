"""Plain cases: ordinary blocks, one tensor between stages, two runs."""

from __future__ import annotations

from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

PLAIN = Subject(
    focus=Focus.PLAIN,
    found=lambda case: True,
    rarity=0,
    no_control="a plain case has nothing to remove",
)
