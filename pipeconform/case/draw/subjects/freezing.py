"""Stages that are frozen and unfrozen between steps."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from pipeconform.case.case import Case, Freeze, Model, Step, Zero
from pipeconform.case.draw.changes import replaced, unfrozen
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

_MOST_UNFROZEN = 2
"""How many stages are unfrozen one after the other."""


def _program(d: Drawing, draft: Draft) -> Draft:
    """Draw how stages are frozen: one for a while, from a step on, from its making on; or all but the last."""
    t, z = draft.train, Zero(set_to_none=True)
    how = d.pick(["at first", "later", "when made", "gradually"])
    last = len(draft.model.stages) - 1
    if how == "gradually":
        # from the loss down, as in J. Howard, S. Ruder, "Universal Language Model Fine-tuning for Text
        # Classification" (2018), §3.3
        steps: tuple[Step, ...] = (*(Freeze(stage=s) for s in range(last)), t)
        for s in range(last - 1, max(last - 1 - _MOST_UNFROZEN, -1), -1):
            steps += (z, Freeze(stage=s, frozen=False), t)
        return replaced(draft, program=steps)
    s = d.pick(range(last + 1))
    freeze, unfreeze = Freeze(stage=s), Freeze(stage=s, frozen=False)
    if how == "at first":
        return replaced(draft, program=(freeze, t, z, unfreeze, t))
    if how == "later":
        return replaced(draft, program=(t, z, freeze, t))
    return replaced(draft, model=_frozen(draft.model, {s}), program=(t, z, unfreeze, t))


def _frozen(model: Model, which: set[int]) -> Model:
    stages = (structs.replace(one, frozen=s in which) for s, one in enumerate(model.stages))
    return structs.replace(model, stages=tuple(stages))


def _controls(case: Case) -> Iterator[tuple[str, Case]]:
    """The case in which nothing is ever frozen, and the one in which the same stages always are."""
    left = structs.replace(case, program=tuple(step for step in case.program if not isinstance(step, Freeze)))
    yield "with nothing frozen in any step", unfrozen(left)
    which = {step.stage for step in case.program if isinstance(step, Freeze)}
    if len(which) < case.num_stages:
        yield (
            "with the same stages frozen in every step",
            structs.replace(left, model=_frozen(left.model, which)),
        )


FREEZING = Subject(
    focus=Focus.FREEZING,
    needs=frozenset({Feature.FROZEN, Feature.FREEZING}),
    trains=True,
    found=lambda case: any(isinstance(step, Freeze) for step in case.program),
    rarity=2,
    least_stages=2,
    program=_program,
    controls=_controls,
    control="with nothing frozen in any step",
)
