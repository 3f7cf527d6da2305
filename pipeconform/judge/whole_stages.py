"""The whole model's values assigned to the stages that a front end made.

The oracle runs the whole model as one stage. To find the first wrong tensor, its values are assigned to stages again:
parameters and buffers to the stages that show them, and what crosses a cut where that is known
(`pipeconform.case.build.whole.cuts_are_known`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Mapping

from msgspec import structs

from pipeconform.case.build.whole import aliases_of
from pipeconform.judge.evidence import Evidence
from pipeconform.observe.observation import Named, Observation, Reference, StepExpected, StepShown, Structure
from pipeconform.oracle.full_model import Bounds

__all__ = ["by_stages"]

_NAMED = ("gradients", "parameters", "buffers")
_Names = dict[int, set[str]]


def by_stages(evidence: Evidence) -> Evidence:
    """The same evidence, with the oracle's values assigned to the stages in which the ranks show them."""
    aliases = aliases_of(evidence.case)
    shown = tuple(_known_names(one, aliases) for one in evidence.shown)
    held = _held(shown, aliases, num_stages=evidence.case.num_stages)

    @functools.cache
    def bounded(bounds: Bounds) -> Reference:
        return _told_apart(evidence.bounded(bounds), held, aliases)

    expected = _told_apart(evidence.expected, held, aliases)
    return dataclasses.replace(evidence, shown=shown, expected=expected, bounded=bounded)


def _known_names(one: Observation, aliases: Mapping[str, str]) -> Observation:
    """The same evidence without what a front end adds to the model, such as constants."""

    def known(step: StepShown) -> StepShown:
        return structs.replace(
            step,
            **{
                what: {
                    s: {name: value for name, value in own.items() if name in aliases}
                    for s, own in getattr(step, what).items()
                }
                for what in _NAMED
            },
        )

    return structs.replace(one, steps=tuple(map(known, one.steps)))


def _held(shown: tuple[Observation, ...], aliases: Mapping[str, str], *, num_stages: int) -> _Names:
    """The names that each stage holds; what no rank shows belongs to the stage for which it was built."""
    held: _Names = {s: set() for s in range(num_stages)}
    for one in shown:
        for step in one.steps:
            for what in _NAMED:
                for s, own in getattr(step, what).items():
                    held[s] |= own.keys()
    seen = {aliases[name] for own in held.values() for name in own}
    for name in aliases.keys() - seen:
        if aliases[name] == name:
            held[_stage_of(name, num_stages)].add(name)
    return held


def _stage_of(name: str, num_stages: int) -> int:
    """The number of the stage in a name such as ``stages.2.blocks.0.weight``."""
    _, number, *_ = name.split(".")
    return min(int(number), num_stages - 1) if number.isdecimal() else 0


def _told_apart(reference: Reference, held: _Names, aliases: Mapping[str, str]) -> Reference:
    return structs.replace(
        reference, steps=tuple(_step_told_apart(step, held, aliases) for step in reference.steps)
    )


def _step_told_apart(step: StepExpected, held: _Names, aliases: Mapping[str, str]) -> StepExpected:
    def apart(values: Mapping[int, Named]) -> dict[int, Named]:
        whole = values.get(0, {})
        return {
            s: {name: whole[first] for name, first in aliases.items() if name in names and first in whole}
            for s, names in held.items()
        }

    inputs: dict[int, dict[int, tuple[Structure, ...]]] = defaultdict(dict)
    for one in step.flow:
        if one.kind == "input":
            inputs[one.stage][one.call] = (Structure(kind="tensor", array=one.value),)
    return structs.replace(
        step,
        inputs=tuple(tuple(own[k] for k in sorted(own)) for _, own in sorted(inputs.items())),
        gradients=apart(step.gradients),
        gradient_bounds=apart(step.gradient_bounds),
        parameters=apart(step.parameters),
        parameter_bounds=apart(step.parameter_bounds),
        buffers=apart(step.buffers),
        buffer_bounds=apart(step.buffer_bounds),
    )
