"""Turns plain cases into cases about front ends, whose model is given whole, and draws how it is split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Split, Stage
from pipeconform.case.draw.drawing import Drawing
from pipeconform.claims import TracingClaim

__all__ = ["By", "Wrong", "as_whole", "split_of", "tracing_of"]

By = Literal["annotations", "policy", "points"]
Wrong = Literal["", "unknown", "uncalled", "empty", "branch"]


def as_whole(
    d: Drawing, case: Case, *, alike: bool = False, wrong: Callable[[By], tuple[By, Wrong]] | None = None
) -> Case:
    """The plain `case` with its model given whole; with `alike`, a policy may get stages that are all the same."""
    by: By = d.pick(tracing_of(d).splits)
    what: Wrong = ""
    if wrong is not None:
        by, what = wrong(by)
    after = by == "points" and d.pick([False, True] if tracing_of(d).after else [False])
    inside = by == "annotations" and d.pick([False, True])
    split = Split(by=by, inside=inside, after=after, wrong=what)
    model = structs.replace(case.model, split=split)
    if by == "policy" and alike and d.pick([False, True]):
        model = structs.replace(model, stages=(Stage(blocks=(blocks.Linear(),)),) * len(model.stages))
    return structs.replace(case, model=model)


def tracing_of(d: Drawing) -> TracingClaim:
    """The tracing claim, which must exist."""
    claim = d.capabilities.tracing
    assert claim is not None
    return claim


def split_of(case: Case) -> Split:
    """The split of a case's model, which must exist."""
    assert case.model.split is not None
    return case.model.split
