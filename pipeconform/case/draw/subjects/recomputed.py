"""Engines that keep no activations and compute stages again in the backward.

What goes into a stage decides how well that works: integers, tensors without a gradient, random numbers, several
tensors. Cases take turns with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec import structs

from pipeconform.case.case import LossSpec, World
from pipeconform.case.draw.changes import changed_world, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects import boundary, dropout
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


def _members() -> Iterator[Subject]:
    """Stages that are computed again, each with something else in the model, and with nothing in particular."""
    plain = Subject(
        focus=Focus.RECOMPUTED,
        needs=_NEEDS,
        trains=True,
        world=_world,
        no_control="a part of the subject, which has it",
    )
    yield dataclasses.replace(plain, claimed=lambda claim, own: "tokens" in kinds(own), contents=_tokens)
    for other in (boundary.NO_GRAD, dropout.DROPOUT, boundary.BOUNDARY):
        yield dataclasses.replace(
            plain, needs=_NEEDS | other.needs, claimed=other.claimed, contents=other.contents
        )
    yield plain


RECOMPUTED = Subject(
    focus=Focus.RECOMPUTED,
    inside=True,
    needs=_NEEDS,
    trains=True,
    found=lambda case: case.world.recompute,
    rarity=2,
    world=_world,
    members=tuple(_members()),
    without=lambda case: changed_world(case, recompute=False),
    control="with activations that are kept",
)
