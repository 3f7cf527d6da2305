"""Gradients in bfloat16 that are added up in float32: the large one of the first sample, and many small ones."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import LossSpec, Stage, Zero
from pipeconform.case.draw.changes import changed_model, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _exact(d: Drawing, draft: Draft) -> Draft:
    stages = tuple(Stage(blocks=(blocks.Gain(),)) for _ in draft.model.stages)
    model = structs.replace(draft.model, stages=stages, sequence=min(1, draft.model.sequence))
    return replaced(draft, model=model, loss=LossSpec(reduction=draft.loss.reduction))


def _several_steps(d: Drawing, draft: Draft) -> Draft:
    train = draft.train
    if Feature.ACCUMULATION in d.features:
        return replaced(draft, program=(train,) * d.pick((2, 3, 4)))
    return replaced(draft, program=(train, Zero(set_to_none=True), train))


FLOAT32_SUMS = Subject(
    focus=Focus.FLOAT32_SUMS,
    needs=frozenset({Feature.FLOAT32_SUMS}),
    squares=True,
    trains=True,
    found=lambda case: case.model.sums_in_float32,
    rarity=2,
    several_microbatches=True,
    batch_size=lambda d, default: d.num_microbatches,
    widths=(1, 2, 4, 8),
    dtype=lambda d: "bfloat16",
    contents=_exact,
    program=_several_steps,
    without=lambda case: changed_model(case, dtype="float32"),
    control="with a model in float32",
    alters="dtype",
)
