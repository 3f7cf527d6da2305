"""Block masks of flex attention as keyword arguments of decoder layers."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Kwarg, KwargKind
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.decoders import WIDTHS, decoder_stages, dtype_of_decoders, fit_decoders
from pipeconform.case.draw.subjects.kwargs import fits, size_for_splits, without_kwargs
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

_KINDS: tuple[KwargKind, ...] = ("block_mask", "block_mask", "window")


def _masked(d: Drawing, draft: Draft) -> Draft:
    """Every stage has a mask of its own, or that of a later stage is the only one."""
    stages = decoder_stages(d, draft)
    kwargs = tuple(Kwarg(stage=s, kind=d.pick(_KINDS)) for s in range(len(stages)))
    if d.capabilities.kwargs_scope != "pipeline":
        kwargs = d.pick([kwargs, kwargs, kwargs[-1:]])
    return replaced(draft, model=structs.replace(draft.model, stages=stages, kwargs=kwargs))


BLOCK_MASKS = Subject(
    focus=Focus.BLOCK_MASKS,
    needs=frozenset({Feature.KWARGS, Feature.BLOCK_MASKS}),
    claimed=lambda claim, own: fits(claim, own) and fit_decoders(own),
    found=lambda case: any(kwarg.is_block_mask for kwarg in case.model.kwargs),
    rarity=3,
    size=size_for_splits,
    widths=WIDTHS,
    sequence=lambda d, sequence: d.pick([3, 4, 5]),
    dtype=dtype_of_decoders,
    contents=_masked,
    without=without_kwargs,
    control="without block masks",
)
