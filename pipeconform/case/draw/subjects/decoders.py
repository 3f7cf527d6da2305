"""Layers of language models: decoders, with positions and masks by keyword, between embedding and head."""

from __future__ import annotations

import itertools

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, FloatType, Kwarg, KwargKind, LossSpec, Model, Stage
from pipeconform.case.draw.changes import changed_blocks, changed_model, has, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.targets import with_tokens
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature

_KINDS: tuple[FloatType, ...] = ("float64", "float64", "float32")
"""Of 16 bits, bounds on so many operations allow everything."""
WIDTHS = (2, 3, 4, 4, 6, 8, 8)
"""A single value has no direction, which is all that RMSNorm leaves."""


def decoder_stages(d: Drawing, draft: Draft) -> tuple[Stage, ...]:
    """As many stages of decoder layers as the draft has stages."""
    layers = (blocks.Decoder(), blocks.Decoder(kv_heads=2))
    stages = [Stage(blocks=(d.pick(layers),)) for _ in draft.model.stages]
    # one stage of two layers is enough to have layers of different kinds in one stage
    stages[-1] = Stage(blocks=(*stages[-1].blocks, *d.pick([(), layers[1:]])))
    return tuple(stages)


def _decoders(d: Drawing, draft: Draft) -> Draft:
    stages = decoder_stages(d, draft)
    model = structs.replace(draft.model, stages=stages, kwargs=_told(d, len(stages)))
    if Feature.TOKENS in d.features and "cross_entropy" in d.capabilities.losses and d.pick([False, True]):
        return _of_tokens(d, draft, model)
    return replaced(draft, model=model)


def _told(d: Drawing, num_stages: int) -> tuple[Kwarg, ...]:
    """No keyword arguments, or positions or a mask or both, for every stage as in packed or padded batches."""
    scope = d.capabilities.kwargs_scope
    if Feature.KWARGS not in d.features or (scope == "rank" and d.stages_per_rank > 1):
        return ()
    # both come first, as the first case of every corpus has the first of everything
    options: list[tuple[KwargKind, ...]] = [("positions", "mask"), ("positions",), ("mask",), ()]
    kinds = d.pick(options)
    return tuple(Kwarg(stage=s, kind=kind) for s, kind in itertools.product(range(num_stages), kinds))


def _of_tokens(d: Drawing, draft: Draft, model: Model) -> Draft:
    """A language model: embedding, decoders, head, cross-entropy."""
    only = "mse" not in d.capabilities.losses
    loss = LossSpec(kind="cross_entropy", reduction=draft.loss.reduction, fixed=only)
    return replaced(draft, model=with_tokens(model), loss=loss)


def _plain(case: Case) -> Case:
    return changed_blocks(changed_model(case, kwargs=()), {blocks.Decoder: (blocks.Linear(),)})


def fit_decoders(own: Capabilities) -> bool:
    """Whether tensors between decoder layers may cross boundaries."""
    return own.boundary.max_ndim >= 3 and not set(_KINDS).isdisjoint(own.boundary.dtypes)


def dtype_of_decoders(d: Drawing) -> FloatType:
    """The dtype of a model of decoder layers."""
    return d.pick([kind for kind in _KINDS if kind in d.boundary.dtypes])


DECODERS = Subject(
    focus=Focus.DECODERS,
    claimed=lambda claim, own: fit_decoders(own),
    found=has(blocks.Decoder),
    rarity=2,
    widths=WIDTHS,
    sequence=lambda d, sequence: d.pick([2, 3, 4]),
    dtype=dtype_of_decoders,
    contents=_decoders,
    without=_plain,
    control="with linear maps instead of decoders, and without their keyword arguments",
)
