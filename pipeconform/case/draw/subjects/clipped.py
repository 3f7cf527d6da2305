"""Optimizer steps that clip gradients by the norm over all stages."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Clip, FloatType, Optimize, Sgd, Zero
from pipeconform.case.draw.changes import in_some_stage, replaced
from pipeconform.case.draw.drawing import Drawing, usual_dtypes
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.tied_stages import can_tie, tied
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature

__all__ = ["CLIPPED", "clips_as_claimed", "some_clip"]

_LIMITS = (0.0625, 0.0625, 0.5, 64.0)
"""Below most norms, and above all of them: then nothing must change."""
_NORMS: tuple[Literal["two", "maximum"], ...] = ("two", "two", "maximum")


def _clip(case: Case) -> Clip | None:
    return case.optimizer.clip if isinstance(case.optimizer, Sgd) else None


def _found(case: Case) -> bool:
    return isinstance(case.optimizer, Sgd) and case.optimizer.clip is not None and not case.optimizer.masters


def clips_as_claimed(case: Case, own: Capabilities) -> bool:
    """Whether the case clips only by a norm, and gradients of a dtype, that are claimed.

    Where copies are stepped, it is gradients in float32 that are clipped.
    """
    clip = _clip(case)
    if clip is None:
        return True
    assert isinstance(case.optimizer, Sgd)
    if case.optimizer.masters:
        return clip.norm in own.clipping.norms
    return own.clipping.takes(norm=clip.norm, dtype=case.model.dtype)


def _dtypes(own: Capabilities) -> list[FloatType]:
    return [kind for kind in usual_dtypes(own.boundary) if kind in own.clipping.dtypes]


def _ties_stages(d: Drawing) -> bool:
    """Whether stages can share a weight, of which norms must count one copy."""
    return "mse" in d.capabilities.losses and can_tie(d.claim, d.capabilities)


def some_clip(d: Drawing) -> Clip:
    """A limit, and a norm that is claimed."""
    norms = [norm for norm in _NORMS if norm in d.capabilities.clipping.norms]
    return Clip(limit=d.pick(_LIMITS), norm=d.pick(norms))


def _contents(d: Drawing, draft: Draft) -> Draft:
    clip = some_clip(d)
    if _ties_stages(d) and d.pick((False, True)):
        draft = replaced(draft, model=tied(d, draft.model))
    elif Feature.SHARED_IN_STAGE in d.features:
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
    claimed=lambda claim, own: bool(own.clipping.norms and _dtypes(own)),
    found=_found,
    rarity=2,
    least_stages=2,  # the norm of a single stage is no question
    widths=(2, 3, 4, 4, 6, 8, 8),  # with a single column one shard has all of a matrix
    dtype=lambda d: d.one_of(_dtypes(d.capabilities)),
    contents=_contents,
    program=_program,
    without=_unclipped,
    control="without clipping",
)
