"""Keyword arguments: tensors and numbers, objects, and those with split rules of their own."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case.case import Case, Kwarg, KwargKind, Model, Zero
from pipeconform.case.draw.changes import changed_model, on_model, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import shapes, some_m
from pipeconform.case.draw.subject import Draft, Size, Subject
from pipeconform.case.focus import Focus
from pipeconform.case.model import stages_given
from pipeconform.claims import Capabilities, Feature, ScheduleClaim

_OWN_SPLITS: dict[KwargKind, Feature] = {
    "turned": Feature.SPLIT_DIMS,
    "whole": Feature.WHOLE_TENSORS,
    "listed": Feature.CUSTOM_SPLITS,
}
_USUAL: tuple[KwargKind, ...] = ("tensor", "number")


def _own_splits(features: frozenset[Feature]) -> list[KwargKind]:
    """The claimed kinds of keyword arguments with split rules of their own."""
    return [kind for kind, feature in _OWN_SPLITS.items() if feature in features]


def fits(claim: ScheduleClaim, own: Capabilities) -> bool:
    """Whether stages can get keyword arguments of their own: if they go to whole ranks, a rank has one stage."""
    return own.kwargs_scope != "rank" or 1 in claim.stages_per_rank


def size_for_kwargs(d: Drawing) -> Size:
    """Sizes at which every stage can get keyword arguments of its own."""
    p, v = d.pick(shapes(d.limits, d.claim))
    m = d.pick(some_m(d.claim, p, v))
    if d.capabilities.kwargs_scope == "rank" and v > 1:
        v, m = 1, d.pick(some_m(d.claim, p, 1))
    return p, v, m


def size_for_splits(d: Drawing) -> Size:
    """Several microbatches wherever the schedule accepts them: with one, nothing is split."""
    p, v, m = size_for_kwargs(d)
    return p, v, m if m > 1 else d.pick([n for n in some_m(d.claim, p, v) if n > 1] or [m])


def _given(d: Drawing, model: Model, kind: Callable[[], KwargKind]) -> Model:
    kwargs = tuple(Kwarg(stage=s, kind=kind()) for s in range(len(model.stages)))
    if d.capabilities.kwargs_scope != "pipeline":
        # those of later stages are lost more often
        kwargs = d.pick([kwargs[-1:], kwargs, kwargs, kwargs[:1]])
    return structs.replace(model, kwargs=kwargs)


def _with_own_splits(d: Drawing, model: Model) -> Model:
    given = _given(d, model, lambda: d.pick(_own_splits(d.features)))
    # with one rule, an engine cannot mistake one argument's for another's
    if d.pick([True, True, False]):
        rows = [Kwarg(stage=s, kind="rows") for s in sorted(stages_given(given, "turned"))]
        return structs.replace(given, kwargs=(*given.kwargs, *rows))
    return given


def _evaluated(d: Drawing, draft: Draft) -> Draft:
    """Evaluate beside training: an engine may give the rules to training steps alone."""
    if not (d.claim.trains and d.claim.evaluates and Feature.EVAL in d.features):
        return draft
    t, e = draft.train, draft.evaluate
    return replaced(draft, program=d.pick([(t, e), (t, e, Zero(set_to_none=True), t), (e, t)]))


def _kinds(case: Case) -> set[KwargKind]:
    return {kwarg.kind for kwarg in case.model.kwargs}


def has_own_splits(case: Case) -> bool:
    """Whether a keyword argument has a split rule of its own."""
    return not _kinds(case).isdisjoint(_OWN_SPLITS)


def without_kwargs(case: Case) -> Case:
    """The case without keyword arguments."""
    return changed_model(case, kwargs=())


KWARGS = Subject(
    focus=Focus.KWARGS,
    needs=frozenset({Feature.KWARGS}),
    claimed=fits,
    found=lambda case: bool(kinds := _kinds(case)) and kinds.issubset(_USUAL),
    size=size_for_kwargs,
    contents=on_model(lambda d, model: _given(d, model, lambda: d.pick(_USUAL))),
    without=without_kwargs,
    control="without keyword arguments",
)
OBJECTS = Subject(
    focus=Focus.OBJECTS,
    needs=frozenset({Feature.OBJECTS}),
    claimed=fits,
    found=lambda case: "objects" in (kinds := _kinds(case)) and kinds.isdisjoint(_OWN_SPLITS),
    size=size_for_kwargs,
    contents=on_model(lambda d, model: _given(d, model, lambda: "objects")),
    without=without_kwargs,
    control="without keyword arguments",
)
RULES = Subject(
    focus=Focus.RULES,
    needs=frozenset({Feature.KWARGS}),
    claimed=lambda claim, own: bool(_own_splits(own.features)) and fits(claim, own),
    found=has_own_splits,
    size=size_for_splits,
    contents=on_model(_with_own_splits),
    program=_evaluated,
    without=without_kwargs,
    control="without keyword arguments",
)
