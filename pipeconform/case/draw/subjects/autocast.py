"""Automatic mixed precision, without a scaled loss; `masters` has those with one."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.blocks import Linear, Mlp
from pipeconform.case.case import Eval, Model, Train
from pipeconform.case.draw.changes import appended, changed_steps, replaced, with_linear_maps
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _in_both_dtypes(model: Model) -> Model:
    """The second stage gets float32 and returns bfloat16, so what is sent forward and back differs in dtype.

    Under autocast linear maps return bfloat16, and the sum of float32 and that is float32.
    """
    if model.tokens or len(model.stages) < 3:
        return model
    first = structs.replace(model.stages[0], blocks=(Mlp(),))
    return appended(structs.replace(model, stages=(first, *model.stages[1:])), 1, Linear())


def _under_autocast(d: Drawing, draft: Draft) -> Draft:
    # behind a norm the bound allows almost every gradient; with the others dtypes are judged
    model = with_linear_maps(draft.model) if d.pick((True, True, False)) else draft.model
    return replaced(
        draft,
        model=_in_both_dtypes(model),
        train=structs.replace(draft.train, autocast=True),
        evaluate=structs.replace(draft.evaluate, autocast=True),
    )


AUTOCAST = Subject(
    focus=Focus.AUTOCAST,
    needs=frozenset({Feature.AUTOCAST}),
    # stages that end in different kinds of blocks then return different dtypes
    claimed=lambda claim, own: own.boundary.differ and "float32" in own.boundary.dtypes,
    found=lambda case: case.autocast == "bfloat16",
    exact_mean=True,
    rows=(1, 1, 2),
    widths=(1, 2, 3, 4),
    sequence=lambda d, sequence: 0 if d.boundary.min_ndim <= 2 else sequence,
    dtype=lambda d: "float32",
    contents=_under_autocast,
    without=lambda case: changed_steps(case, Train, Eval, autocast=False),
    control="without autocast",
)
