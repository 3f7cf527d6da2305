"""Several tensors between stages, with and without gradients."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Carried, Case, Model
from pipeconform.case.draw.changes import ORDINARY_TENSORS, changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.passages import passes
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

_WITHOUT_GRADIENT = frozenset({"positions", "mask", "scale"})


def _several(d: Drawing, model: Model) -> Model:
    tables: list[tuple[Carried, ...]] = [(), ("stream",), ("stream", "stream")]
    return _carrying(d, model, d.pick(tables) if d.boundary.most_inputs > 1 else ())


def _without_gradient(d: Drawing, model: Model) -> Model:
    others: list[Carried] = ["scale"] if d.boundary.no_grad_tensors else []
    others += ["positions", "mask"] if d.boundary.non_float_tensors else []
    first = d.pick(others)
    table: list[tuple[Carried, ...]] = [(first,), (first, d.pick(others))]
    if d.boundary.most_inputs > 3:
        table.append((first, "stream", d.pick(others)))
    chosen = d.pick(table)
    if len(chosen) == 2 and chosen[0] == chosen[1]:
        chosen = chosen[:1]
    return _carrying(d, model, chosen)


def _carrying(d: Drawing, model: Model, carried: tuple[Carried, ...]) -> Model:
    most = d.boundary.most_inputs - 1
    return structs.replace(model, carried=carried[:most], container=d.pick(d.containers))


def _not_carrying(case: Case) -> Case:
    container = case.model.container if case.model.passages else "tensor"
    return changed_model(case, carried=(), container=container)


BOUNDARY = Subject(
    focus=Focus.BOUNDARY,
    claimed=lambda claim, own: not {"tuple", "list"}.isdisjoint(own.boundary.containers),
    found=lambda case: (
        case.model.container != "tensor"
        and not case.model.passages
        and not _WITHOUT_GRADIENT.intersection(case.model.carried)
    ),
    contents=on_model(_several),
    without=_not_carrying,
    control="with one tensor between stages",
)
NO_GRAD = Subject(
    focus=Focus.NO_GRAD,
    claimed=lambda claim, own: (
        passes(claim, own)
        and own.boundary.most_inputs > 1
        and (own.boundary.no_grad_tensors or own.boundary.non_float_tensors)
    ),
    found=lambda case: bool(_WITHOUT_GRADIENT.intersection(case.model.carried)),
    contents=on_model(_without_gradient),
    without=_not_carrying,
    control="with one tensor between stages",
    further=(ORDINARY_TENSORS,),
)
