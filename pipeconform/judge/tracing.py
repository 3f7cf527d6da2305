"""Stages that a front end makes by splitting the whole model.

A front end is partly free to choose where it cuts, so nothing here is compared stage by stage: values are compared by
the model's qualified names, whichever stage holds them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeconform.adapter import Feature
from pipeconform.bounds.gauge import Gauge
from pipeconform.case.case import Case, Eval, Train
from pipeconform.judge import forward, training
from pipeconform.judge.evidence import Evidence, Finding, Numbers, missing, shown_step
from pipeconform.judge.exchanged_words import exchanged, shape_pattern, shown_pattern
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Known, Named, Reference

__all__ = [
    "aliases_in",
    "boundary_agrees",
    "refusal_is_clear",
    "shapes_are_told_apart",
    "some_of",
    "split_mistake",
    "stages_equal_the_model",
    "tensors_in_words",
]


@functools.lru_cache(maxsize=64)
def aliases_in(case: Case) -> dict[str, str]:
    """For every name of a parameter or buffer of the whole model, the first name of the same tensor."""
    from pipeconform.case.build.whole import aliases_of

    return aliases_of(case)


@dataclass(frozen=True, kw_only=True)
class _Held:
    """A value that a stage shows under a name."""

    rank: int
    stage: int
    name: str
    value: Array | None


def stages_equal_the_model(evidence: Evidence) -> Iterator[Finding]:
    """All stages together give the model's outputs, losses, gradients and buffers."""
    yield from forward.outputs_are_right(evidence)
    yield from training.losses_are_right(evidence)
    for expected in evidence.runs(Train):
        yield from _named_are_right(evidence, expected.step, "gradients", expected.gradients[0])
    if Feature.STATE in evidence.capabilities.features:
        for expected in evidence.runs():
            yield from _named_are_right(evidence, expected.step, "buffers", expected.buffers[0])


def _named_are_right(evidence: Evidence, step: int, what: str, right: Named) -> Iterator[Finding]:
    """A finding about the first gradient or buffer of the model that is wrong in a stage that holds it."""
    numbers, aliases = Numbers(evidence=evidence), aliases_in(evidence.case)
    held: dict[str, list[_Held]] = {}
    for one in evidence.members:
        shown: dict[int, Named] = getattr(shown_step(one, step), what)
        for s, values in shown.items():
            for name, value in values.items():
                if name in aliases:
                    mine = _Held(rank=one.rank, stage=s, name=name, value=value)
                    held.setdefault(aliases[name], []).append(mine)
    word = what.removesuffix("s")
    for name, expected in right.items():

        def bound(reference: Reference, name: str = name) -> Array | None:
            bounds: dict[int, Named] = getattr(reference.steps[step], f"{word}_bounds")
            return bounds.get(0, {}).get(name)

        if name not in held and expected is not None:
            yield Finding(
                kind=f"{word} missing",
                message=f"no stage shows the {word} of {name}\n{missing(expected, None).describe()}",
                step=step,
            )
            return
        for mine in held.get(name, ()):
            mismatch = numbers.differs(expected, mine.value, bound)
            if mismatch is not None:
                yield Finding(
                    kind=f"{word} {mismatch.kind}",
                    message=f"the {word} of {mine.name} is not the whole model's\n{mismatch.describe()}",
                    step=step,
                    rank=mine.rank,
                    stage=mine.stage,
                    mismatch=mismatch,
                )
                return


def boundary_agrees(case: Case, known: Known, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a known boundary is the model's; where a policy cuts inside a block, only dtypes can be compared."""
    split = case.model.split
    if split is not None and split.by == "policy":
        return all(own == dtype for _, own in known.tensors)
    return known.tensors == ((shape, dtype),)


def shapes_are_told_apart(case: Case, texts: Sequence[str]) -> Iterator[Finding]:
    """A finding if an error about another shape swaps the traced shape and the actual one."""
    from pipeconform.case.build import data
    from pipeconform.case.build.whole import as_traced

    steps = [index for index, step in enumerate(case.program) if isinstance(step, Train | Eval)]
    shapes = [
        [tuple(one.args[0].shape) for one in data.make_batch(case, step).microbatches] for step in steps
    ]
    traced = tuple(data.make_batch(as_traced(case), steps[0]).microbatches[0].args[0].shape)
    for step, found in zip(steps, shapes, strict=True):
        for actual in dict.fromkeys(shape for shape in found if shape != traced):
            for text in texts:
                if exchanged(text, expected=shape_pattern(traced), actual=shown_pattern(actual)):
                    yield Finding(
                        kind="shapes exchanged",
                        message=f"the traced shape is {list(traced)}, that of step {step} is {list(actual)}; "
                        f"the error swaps the two shapes: {text.strip()[:200]!r}",
                        step=step,
                    )
                    return


def refusal_is_clear(case: Case, texts: Sequence[str], gauge: Gauge) -> Iterator[Finding]:
    """The error of every rank names the wrong split point; `texts` are the ranks' error messages."""
    from pipeconform.case.build.whole import split_of

    split, plan = case.model.split, split_of(case)
    if split is None or plan is None or split.wrong not in ("unknown", "uncalled", "empty"):
        return
    name = plan.points[-1].module
    gauge.count(len(texts))
    for text in texts:
        if name not in text:
            yield Finding(
                kind=f"{split.wrong} split point not named",
                message=f"{split_mistake(case)}, but the error does not name it: {text.strip()[:200]!r}",
            )
            return


def split_mistake(case: Case) -> str:
    """What is wrong with the split point, in words."""
    from pipeconform.case.build.whole import split_of

    split, plan = case.model.split, split_of(case)
    assert split is not None
    assert plan is not None
    point = f"the split point {'after' if split.after else 'before'} {plan.points[-1].module!r}"
    return {
        "unknown": f"{point} names no submodule",
        "uncalled": f"{point} names a submodule that is never called",
        "empty": f"{point} leaves a stage without any computation",
    }[split.wrong]


def tensors_in_words(known: Known) -> str:
    """Dtypes and shapes in words."""
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in known.tensors)


def some_of(names: Sequence[str]) -> str:
    """The first three names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
