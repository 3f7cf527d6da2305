"""Engines that keep no activations and compute stages again in the backward.

What goes into a stage decides how well that works: integers, tensors without a gradient, random numbers, several
tensors. Cases take turns with them.
"""

from __future__ import annotations

import dataclasses

from msgspec import structs

from pipeconform.case.case import LossSpec, World
from pipeconform.case.draw.changes import changed_world, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.boundary import BOUNDARY, NO_GRAD
from pipeconform.case.draw.subjects.dropout import DROPOUT
from pipeconform.case.draw.subjects.targets import kinds, with_tokens
from pipeconform.case.draw.worlds import alone
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

_NEEDS = frozenset({Feature.RECOMPUTATION})


def _world(d: Drawing) -> World:
    return structs.replace(alone(d), recompute=True)


def _tokens(d: Drawing, draft: Draft) -> Draft:
    loss = LossSpec(kind="cross_entropy", reduction=draft.loss.reduction)
    return replaced(draft, model=with_tokens(draft.model), loss=loss)


def _member(other: Subject) -> Subject:
    """Stages that are computed again, with what another subject puts into a model."""
    return Subject(
        focus=Focus.RECOMPUTED,
        needs=_NEEDS | other.needs,
        trains=True,
        claimed=other.claimed,
        contents=other.contents,
        world=_world,
        no_control="a part of the subject, which has it",
    )


_PLAIN = Subject(
    focus=Focus.RECOMPUTED,
    needs=_NEEDS,
    trains=True,
    world=_world,
    no_control="a part of the subject, which has it",
)
_TOKENS = dataclasses.replace(_PLAIN, claimed=lambda claim, own: "tokens" in kinds(own), contents=_tokens)

RECOMPUTED = Subject(
    focus=Focus.RECOMPUTED,
    needs=_NEEDS,
    trains=True,
    found=lambda case: case.world.recompute,
    rarity=2,
    world=_world,
    members=(_TOKENS, _member(NO_GRAD), _member(DROPOUT), _member(BOUNDARY), _PLAIN),
    without=lambda case: changed_world(case, recompute=False),
    control="with activations that are kept",
)
