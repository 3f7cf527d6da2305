"""Whole models that cannot be split as asked."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.case.draw.changes import changed_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.whole import By, Wrong, as_whole, split_of, tracing_of
from pipeconform.case.focus import Focus


def _mistaken(d: Drawing, case: Case) -> Case:
    """Draw a wrong split; most are about split points."""

    def wrong(by: By) -> tuple[By, Wrong]:
        kinds: list[Wrong] = ["unknown", "uncalled", "empty", "unknown"]
        what = d.pick([*(kinds if "points" in tracing_of(d).splits else []), "branch"])
        return ("points" if what != "branch" else by), what

    return as_whole(d, case, wrong=wrong)


WHOLE_WRONG = Subject(
    focus=Focus.WHOLE_WRONG,
    form="whole",
    found=lambda case: bool(split_of(case).wrong),
    rarity=3,
    finish=_mistaken,
    without=lambda case: changed_model(case, split=structs.replace(split_of(case), wrong="")),
    control="with a model that can be split as asked",
)
