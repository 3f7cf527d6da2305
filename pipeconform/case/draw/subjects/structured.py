"""Models that return a tuple or a dict."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Model
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _output(d: Drawing, model: Model) -> Model:
    kinds = ["tuple1", "tuple"] if Feature.STRUCTURED_OUTPUTS in d.features else []
    kinds += ["dict"] if Feature.MAPPING_OUTPUTS in d.features else []
    return structs.replace(model, output=d.pick(kinds))


STRUCTURED = Subject(
    focus=Focus.STRUCTURED,
    claimed=lambda claim, own: bool(own.features & {Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS}),
    found=lambda case: case.model.output != "tensor",
    contents=on_model(_output),
    without=lambda case: changed_model(case, output="tensor"),
    control="with a model that returns a tensor",
)
