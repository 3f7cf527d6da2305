"""Outputs with merge rules of their own; see `pipeconform.case.build.merges`."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import MergedKind, Model
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

_KINDS: dict[MergedKind, Feature] = {
    "turned": Feature.MERGE_DIMS,
    "whole": Feature.WHOLE_OUTPUTS,
    "parameter": Feature.MERGE_DIMS,
    "total": Feature.CUSTOM_MERGES,
}


def _kinds(features: frozenset[Feature]) -> tuple[MergedKind, ...]:
    """The claimed kinds of merged outputs."""
    return tuple(kind for kind, feature in _KINDS.items() if feature in features)


def _merged(d: Drawing, model: Model) -> Model:
    kinds = _kinds(d.features)
    return structs.replace(model, merged=d.pick([*((kind,) for kind in kinds), kinds]))


MERGES = Subject(
    focus=Focus.MERGES,
    inside=True,
    needs=frozenset({Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS}),
    claimed=lambda claim, own: bool(_kinds(own.features)),
    found=lambda case: bool(case.model.merged),
    contents=on_model(_merged),
    without=lambda case: changed_model(case, merged=()),
    control="with the main output only",
)
