"""Whole models that also return what an earlier stage computed, as an auxiliary loss or activations to look at."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.case.draw.changes import changed_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.whole import as_whole, split_of
from pipeconform.case.focus import Focus


def _returning(d: Drawing, case: Case) -> Case:
    whole = as_whole(d, case)
    early = d.pick(["watched", "watched", "added"])
    return changed_model(whole, split=structs.replace(split_of(whole), early=early))


WHOLE_EARLY = Subject(
    focus=Focus.WHOLE_EARLY,
    form="whole",
    found=lambda case: bool(split_of(case).early),
    rarity=3,
    least_stages=2,
    # of a microbatch of one sample, what is returned early is a single element, as a loss is
    rows=(1, 1, 2),
    finish=_returning,
    without=lambda case: changed_model(case, split=structs.replace(split_of(case), early="")),
    control="with a model that returns what its last stage computed",
)
