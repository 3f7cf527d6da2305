"""Sums that the caller divides by the number of targets of the whole batch that are not ignored."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, LossSpec
from pipeconform.case.draw.changes import replaced, with_classes
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim


def _sums(claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    return "sum" in capabilities.reductions and "cross_entropy" in capabilities.losses


def _drawn(d: Drawing, draft: Draft) -> Draft:
    loss = LossSpec(kind="cross_entropy", reduction="sum", ignore=True, counted=True)
    return replaced(draft, model=with_classes(draft.model), loss=loss)


def _summed(case: Case) -> Case:
    return structs.replace(case, loss=structs.replace(case.loss, ignore=False, counted=False))


COUNTED = Subject(
    focus=Focus.COUNTED,
    needs=frozenset({Feature.LOSS_KWARGS}),
    trains=True,
    claimed=_sums,
    found=lambda case: case.loss.counted,
    rarity=2,
    several_microbatches=True,  # of one, a mean over its targets is a mean over all
    contents=_drawn,
    without=_summed,
    control="with the sum over all targets, undivided",
)
