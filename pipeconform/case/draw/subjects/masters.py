"""Optimizers that step float32 copies of 16-bit parameters, and scaled losses, with clipped gradients or without.

Losses are scaled for models in float16, and for those in float32 that are trained under autocast in float16.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Load, Optimize, Scaling, Sgd, Step, Train, Zero
from pipeconform.case.draw.changes import (
    changed_model,
    changed_steps,
    in_some_stage,
    replaced,
    with_linear_maps,
)
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Change, Draft, Subject
from pipeconform.case.draw.subjects.clipped import some_clip
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim

_RATES = (2.0**-10, 2.0**-9)
"""Below half the distance of two bfloat16 numbers around 1/2, for gradients up to 1: single updates are lost there."""
_LARGE_RATE = 0.125
_UPDATES = (8, 16)
_SCALING = Scaling(initial=2.0**9, backoff=2.0**-14)
"""The first scale makes every gradient above 2⁻⁸ larger than `overflow_layer.LARGEST`, the second none below 2⁶.

With the first, sums of other gradients over replicas stay finite, which some engines divide only afterwards.
"""


def _updates(number: int, draft: Draft) -> tuple[Step, ...]:
    return (draft.train, Optimize(), Zero(set_to_none=True)) * number


def _has(*, scaled: bool, clipped: bool) -> Callable[[Case], bool]:
    def found(case: Case) -> bool:
        by = case.optimizer
        if not isinstance(by, Sgd) or not by.masters:
            return False
        return (by.scaling is not None) == scaled and (by.clip is not None) == clipped

    return found


def _copies(d: Drawing, draft: Draft) -> Draft:
    draft = replaced(draft, model=with_linear_maps(draft.model))
    lr = d.pick(_RATES)
    options = [Sgd(lr=lr, masters=True), Sgd(lr=lr, momentum=0.5, masters=True)]
    return replaced(draft, optimizer=d.pick(options))


def _many_updates(d: Drawing, draft: Draft) -> Draft:
    number = d.pick(_UPDATES)
    steps = _updates(number, draft)
    if Feature.LOADING in d.features:
        steps = (*_updates(number // 2, draft), Load(), *_updates(number // 2, draft))
    return replaced(draft, program=steps[:-1])


def _overflowing(d: Drawing, draft: Draft) -> Draft:
    draft = in_some_stage(blocks.Overflowing())(d, replaced(draft, model=with_linear_maps(draft.model)))
    return replaced(draft, optimizer=Sgd(lr=2.0**-5, masters=True, scaling=_SCALING))


def _overflowing_under_autocast(d: Drawing, draft: Draft) -> Draft:
    draft = _overflowing(d, draft)
    assert isinstance(draft.optimizer, Sgd)
    train = structs.replace(draft.train, autocast=True)
    return replaced(draft, train=train, optimizer=structs.replace(draft.optimizer, masters=False))


def _two_updates(d: Drawing, draft: Draft) -> Draft:
    return replaced(draft, program=_updates(2, draft)[:-1])


def _clipping(contents: Change) -> Change:
    """The contents with an optimizer that clips, and moves parameters by more than what 16 bits round away."""

    def clipped(d: Drawing, draft: Draft) -> Draft:
        draft = contents(d, draft)
        assert isinstance(draft.optimizer, Sgd)
        return replaced(draft, optimizer=structs.replace(draft.optimizer, lr=_LARGE_RATE, clip=some_clip(d)))

    return clipped


def _some_updates(d: Drawing, draft: Draft) -> Draft:
    return replaced(draft, program=_updates(4, draft)[:-1])


def _clips(claim: ScheduleClaim, own: Capabilities) -> bool:
    return bool(own.clipping.norms)


def _with(**changes: object) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        assert isinstance(case.optimizer, Sgd)
        return structs.replace(case, optimizer=structs.replace(case.optimizer, **changes))

    return change


def _in_float32(case: Case) -> Case:
    return changed_model(_with(masters=False)(case), dtype="float32")


def _without_scale_and_autocast(case: Case) -> Case:
    return changed_steps(_with(scaling=None)(case), Train, autocast=False)


MASTERS = Subject(
    focus=Focus.MASTERS,
    needs=frozenset({Feature.OPTIMIZER, Feature.MASTER_WEIGHTS}),
    trains=True,
    found=_has(scaled=False, clipped=False),
    rarity=2,
    exact_mean=True,
    rows=(1, 1, 2),
    widths=(2, 3, 4),
    dtype=lambda d: "bfloat16",
    contents=_copies,
    program=_many_updates,
    without=_in_float32,
    control="with a model in float32",
    alters="dtype",
)
SCALED = Subject(
    focus=Focus.SCALED,
    needs=frozenset({Feature.OPTIMIZER, Feature.LOSS_SCALING, Feature.CUSTOM_FUNCTIONS}),
    trains=True,
    found=_has(scaled=True, clipped=False),
    rarity=2,
    least_stages=2,  # that of another stage is the question
    widths=(4, 6, 8),
    dtype=lambda d: "float16",
    contents=_overflowing,
    program=_two_updates,
    without=_with(scaling=None),
    control="without a scale of the loss",
)
SCALED_AUTOCAST = Subject(
    focus=Focus.SCALED_AUTOCAST,
    needs=frozenset({Feature.OPTIMIZER, Feature.SCALED_AUTOCAST, Feature.CUSTOM_FUNCTIONS}),
    trains=True,
    # what overflows returns float32
    claimed=lambda claim, own: own.boundary.differ and "float32" in own.boundary.dtypes,
    found=lambda case: case.autocast == "float16",
    rarity=2,
    least_stages=2,
    widths=(4, 6, 8),
    dtype=lambda d: "float32",
    contents=_overflowing_under_autocast,
    program=_two_updates,
    without=_without_scale_and_autocast,
    control="without autocast and a scale of the loss",
)
CLIPPED_COPIES = Subject(
    focus=Focus.CLIPPED_COPIES,
    needs=frozenset({Feature.OPTIMIZER, Feature.MASTER_WEIGHTS, Feature.CLIPPING}),
    trains=True,
    claimed=_clips,
    found=_has(scaled=False, clipped=True),
    rarity=2,
    least_stages=2,  # the norm of a single stage is no question
    exact_mean=True,
    rows=(1, 1, 2),
    widths=(2, 3, 4),
    dtype=lambda d: "bfloat16",
    contents=_clipping(_copies),
    program=_some_updates,
    without=_with(clip=None),
    control="without clipping",
)
CLIPPED_SCALED = Subject(
    focus=Focus.CLIPPED_SCALED,
    needs=frozenset({Feature.OPTIMIZER, Feature.LOSS_SCALING, Feature.CUSTOM_FUNCTIONS, Feature.CLIPPING}),
    trains=True,
    claimed=_clips,
    found=_has(scaled=True, clipped=True),
    rarity=2,
    least_stages=2,
    widths=(4, 6, 8),
    dtype=lambda d: "float16",
    contents=_clipping(_overflowing),
    program=_two_updates,
    without=_with(clip=None),
    control="without clipping",
)
