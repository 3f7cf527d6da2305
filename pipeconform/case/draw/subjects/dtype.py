"""Models in 16 bits."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import FloatType, Model
from pipeconform.case.draw.changes import changed_model, on_model, with_linear_maps
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

_KINDS: tuple[FloatType, ...] = ("bfloat16", "float16")


def _in_narrow_dtype(d: Drawing, model: Model) -> Model:
    # the bound allows many gradients of other models, of which dtypes and losses are judged
    model = with_linear_maps(model) if d.pick((True, True, False)) else model
    carries = d.boundary.most_inputs > 2 and d.boundary.non_float_tensors and bool(d.containers)
    if carries and d.pick([False, True]):
        return structs.replace(model, carried=("positions",), container=d.containers[0])
    return model


DTYPE = Subject(
    focus=Focus.DTYPE,
    claimed=lambda claim, own: not set(_KINDS).isdisjoint(own.boundary.dtypes),
    found=lambda case: case.model.dtype in _KINDS,
    exact_mean=True,
    rows=(1, 1, 2),
    widths=(1, 2, 3, 4),
    dtype=lambda d: d.pick([kind for kind in _KINDS if kind in d.boundary.dtypes]),
    contents=on_model(_in_narrow_dtype),
    without=lambda case: changed_model(case, dtype="float32"),
    control="with a model in float32",
    alters="dtype",
)
