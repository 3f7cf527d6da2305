"""Optimizers that step float32 copies of 16-bit parameters, and scaled losses, with clipped gradients or without."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Load, Model, Optimize, Scaling, Sgd, Step, Zero
from pipeconform.case.draw.changes import changed_model, in_some_stage, replaced, with_other_blocks
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


def _plain(model: Model) -> Model:
    """With linear maps only: in 16 bits the bound on rounding errors allows everything behind a norm."""
    kept = (blocks.Linear, blocks.Embedding, blocks.Head)
    kinds = {type(block) for stage in model.stages for block in stage.blocks}
    return with_other_blocks(model, {kind: (blocks.Linear(),) for kind in kinds if kind not in kept})


def _copies(d: Drawing, draft: Draft) -> Draft:
    draft = replaced(draft, model=_plain(draft.model))
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
    draft = in_some_stage(blocks.Overflowing())(d, replaced(draft, model=_plain(draft.model)))
    return replaced(draft, optimizer=Sgd(lr=2.0**-5, masters=True, scaling=_SCALING))


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


MASTERS = Subject(
    focus=Focus.MASTERS,
    needs=frozenset({Feature.OPTIMIZER, Feature.MASTER_WEIGHTS}),
    trains=True,
    found=_has(scaled=False, clipped=False),
    rarity=2,
    widths=(4, 6, 8),
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
CLIPPED_COPIES = Subject(
    focus=Focus.CLIPPED_COPIES,
    needs=frozenset({Feature.OPTIMIZER, Feature.MASTER_WEIGHTS, Feature.CLIPPING}),
    trains=True,
    claimed=_clips,
    found=_has(scaled=False, clipped=True),
    rarity=2,
    least_stages=2,  # the norm of a single stage is no question
    widths=(4, 6, 8),
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
