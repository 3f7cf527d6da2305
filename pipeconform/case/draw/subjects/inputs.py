"""Gradients of the model's inputs."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Kwarg, KwargKind, Model
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _wanted(d: Drawing, model: Model) -> Model:
    model = structs.replace(model, input_requires_grad=True)
    scope, num = d.capabilities.kwargs_scope, len(model.stages)
    # whether a single stage can get a keyword argument
    apart = scope == "stage" or (scope == "rank" and d.num_ranks == num)
    if apart and {Feature.KWARGS, Feature.KWARG_GRADIENTS} <= d.features:
        kinds: list[KwargKind] = ["tensor", "whole"] if Feature.WHOLE_TENSORS in d.features else ["tensor"]
        given = [(Kwarg(stage=s, kind=kind),) for s in range(num) for kind in kinds]
        return structs.replace(model, kwargs=d.pick([(), *given]))
    return model


INPUTS = Subject(
    focus=Focus.INPUTS,
    needs=frozenset({Feature.INPUT_GRADIENTS}),
    trains=True,
    found=lambda case: case.model.input_requires_grad,
    contents=on_model(_wanted),
    without=lambda case: changed_model(case, input_requires_grad=False),
    control="with inputs that require no gradient",
)
