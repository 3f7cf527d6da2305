"""Optimizer steps that clip gradients by the norm over all stages."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Clip, Optimize, Sgd, Zero
from pipeconform.case.draw.changes import in_some_stage, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

_LIMITS = (0.0625, 0.0625, 0.5, 64.0)
"""Below most norms, and above all of them: then nothing must change."""


def _clip(case: Case) -> Clip | None:
    return case.optimizer.clip if isinstance(case.optimizer, Sgd) else None


def _contents(d: Drawing, draft: Draft) -> Draft:
    clip = Clip(limit=d.pick(_LIMITS), norm=d.pick(["two", "two", "maximum"]))
    if Feature.SHARED_IN_STAGE in d.features:
        draft = in_some_stage(blocks.Tied())(d, draft)
    return replaced(draft, optimizer=Sgd(lr=0.125, clip=clip))


def _program(d: Drawing, draft: Draft) -> Draft:
    steps = (draft.train, Optimize(), Zero(set_to_none=True)) * 2
    return replaced(draft, program=steps[:-1])


def _unclipped(case: Case) -> Case:
    assert isinstance(case.optimizer, Sgd)
    return structs.replace(case, optimizer=structs.replace(case.optimizer, clip=None))


CLIPPED = Subject(
    focus=Focus.CLIPPED,
    needs=frozenset({Feature.OPTIMIZER, Feature.CLIPPING}),
    trains=True,
    found=lambda case: _clip(case) is not None,
    rarity=2,
    contents=_contents,
    program=_program,
    without=_unclipped,
    control="without clipping",
)
