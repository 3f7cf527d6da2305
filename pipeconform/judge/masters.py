"""Parameters of 16 bits that are rounded from float32 copies (TRN-23, TRN-27)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeconform.case.case import Load, Optimize, Sgd, Train
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.norms import shown_gradients, two_norm
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation, StepExpected

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["masters_are_kept"]


def masters_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """After every update each parameter is a float32 copy, rounded, that was stepped with the gradients shown.

    How a gradient is computed in 16 bits is uncertain by more than what a single update changes, so the copies are
    computed from the gradients that the ranks showed, which other requirements judge: without the scale of the loss,
    and clipped.
    """
    used = dict(_used(evidence))
    for s in range(evidence.case.num_stages):
        for one in evidence.owners(s):
            names = evidence.expected.steps[0].parameters.get(s, {})
            for name in names:
                found = next(_wrong(evidence, one, stage=s, name=name, used=used), None)
                if found is not None:
                    yield found
                    break


@dataclass(frozen=True, kw_only=True)
class _Use:
    """What an optimizer does with the gradients that a training step showed."""

    factor: float
    """What they are multiplied by."""
    divisor: float
    """The scale of the loss in them, which the factor takes out."""
    updates: bool
    """Whether they are used: not if one of them is not finite."""


def _used(evidence: Evidence) -> Iterator[tuple[int, _Use]]:
    """What every optimizer step does, by its number in the program."""
    case = evidence.case
    assert isinstance(case.optimizer, Sgd)
    scale = None if case.optimizer.scaling is None else case.optimizer.scaling.initial
    factor = divisor = 1.0
    for expected in evidence.expected.steps:
        step = case.program[expected.step]
        if isinstance(step, Train):
            factor, divisor = _factors(evidence, expected, by=case.optimizer, scale=scale)
        elif isinstance(step, Optimize):
            updates = expected.loss_scale == scale
            yield expected.step, _Use(factor=factor, divisor=divisor, updates=updates)
            scale = expected.loss_scale


def _factors(
    evidence: Evidence, expected: StepExpected, *, by: Sgd, scale: float | None
) -> tuple[float, float]:
    """What the gradients that the ranks showed are multiplied by, and the scale in them: limit / norm / scale.

    `pipeconform.oracle.clipping` has the formula. Whether the gradients that an engine shows are still scaled is its
    own affair; the oracle's are, and no scale is near 1.
    """
    found, right = shown_gradients(evidence, expected), two_norm(_right_gradients(expected))
    size = two_norm(found)
    divisor = 1.0
    if scale is not None and 0 < right < math.inf and 0 < size < math.inf:
        divisor = min((1.0, scale), key=lambda one: abs(math.log(size / one / (right / scale))))
    if by.clip is None:
        return 1.0 / divisor, divisor
    norm = size if by.clip.norm == "two" else max((float(one.abs().amax()) for one in found), default=0.0)
    return min(1.0, by.clip.limit / (norm / divisor + 1e-6)) / divisor, divisor


def _right_gradients(expected: StepExpected) -> list[Tensor]:
    named = (one for several in expected.gradients.values() for one in several.values())
    return [one.tensor().double() for one in named if one is not None]


def _wrong(
    evidence: Evidence, one: Observation, *, stage: int, name: str, used: Mapping[int, _Use]
) -> Iterator[Finding]:
    """Follow one parameter of one rank through the program."""
    import torch

    def shown(values: dict[int, dict[str, Array | None]]) -> Tensor | None:
        found = values.get(stage, {}).get(name)
        return None if found is None else found.tensor()

    case = evidence.case
    assert isinstance(case.optimizer, Sgd)
    follow, gradient, updates, most, others = None, None, 0, 1, case.world.num_replicas - 1
    # one that steps in its training step has changed the parameters there
    compared = Optimize if evidence.capabilities.fused_optimizer else (Optimize, Train)
    for expected in evidence.expected.steps:
        step, mine = case.program[expected.step], shown_step(one, expected.step)
        if isinstance(step, Train):
            gradient, most = shown(mine.gradients), max(most, step.num_microbatches)
        if follow is None or isinstance(step, Load):
            start = shown(expected.parameters)
            follow = None if start is None else _Copy(start, case.optimizer, earlier=follow)
        if follow is None or not isinstance(step, compared):
            continue
        factor = 1.0
        if isinstance(step, Optimize) and gradient is not None:
            if gradient.shape != follow.value.shape:
                return  # which other requirements judge, and no copy can be stepped with
            use = used[expected.step]
            factor = use.factor
            if use.updates:
                follow.step(gradient, use, num_terms=most + others)
                updates += 1
        parameter = shown(mine.parameters)
        evidence.compared()
        if parameter is None or parameter.shape != follow.value.shape:
            continue  # which other requirements judge
        off = (parameter.double() - follow.value).abs() > follow.bound(parameter)
        if bool(off.any()):
            at = tuple(int(i) for i in torch.nonzero(off)[0])
            times = "" if factor == 1.0 else f" times {factor:.3g}"
            yield Finding(
                kind="parameter not rounded from a copy",
                message=(
                    f"the parameter of {name} in stage {stage} is not the float32 copy after {updates} updates\n"
                    f"element {list(at)} is {float(parameter[at]):.9g}; the copy, stepped with the gradients that the "
                    f"rank showed{times}, is {float(follow.value[at]):.9g}"
                ),
                step=expected.step,
                rank=one.rank,
                stage=stage,
            )


class _Copy:
    """A copy in float64 of what an engine keeps in float32, and how far the two may be apart."""

    def __init__(self, start: Tensor, by: Sgd, *, earlier: _Copy | None) -> None:
        self.value = start.double()
        self._by, self._dtype = by, start.dtype
        self._momentum: Tensor | None = None if earlier is None else earlier._momentum
        self._moved = self.value.new_zeros(self.value.shape)
        self._updates = 0

    def step(self, gradient: Tensor, use: _Use, *, num_terms: int) -> None:
        """One update of SGD."""
        import torch

        own = gradient.double() * use.factor
        before = self._momentum
        self._momentum = own if before is None or not self._by.momentum else before * self._by.momentum + own
        change = self._by.lr * self._momentum
        self.value = self.value - change
        # the rank may have used float32 sums of what it showed in 16 bits, or 16 bits of what it showed in float32: as
        # many additions, each rounded once; the factor by which it clips is uncertain by as much, and what it clipped
        # may have been rounded once more, the smallest numbers by as much as their distance
        rounded = num_terms + 1 + (0 if self._by.clip is None else num_terms + 2)
        kind = torch.finfo(self._dtype)
        smallest = self._by.lr / use.divisor * kind.smallest_normal
        self._moved += rounded * (change.abs() + smallest) * kind.eps
        self._updates += 1

    def bound(self, parameter: Tensor) -> Tensor:
        """How far a parameter may be from the copy: rounded once to 16 bits, and after float32 arithmetic."""
        import torch

        kind = torch.finfo(parameter.dtype)
        size = torch.maximum(parameter.double().abs(), self.value.abs())
        rounded = kind.eps * size.clamp(min=kind.smallest_normal) / 2
        return rounded + self._moved + 4 * self._updates * torch.finfo(torch.float32).eps * size
