"""Parameters of 16 bits that are rounded from float32 copies (TRN-23)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeconform.case.case import Load, Optimize, Sgd, Train
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["masters_are_kept"]


def masters_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """After every update each parameter is a float32 copy, rounded, that was stepped with the gradients shown.

    How a gradient is computed in 16 bits is uncertain by more than what a single update changes, so the copies are
    computed from the gradients that the ranks showed, which other requirements judge.
    """
    for s in range(evidence.case.num_stages):
        for one in evidence.owners(s):
            names = evidence.expected.steps[0].parameters.get(s, {})
            for name in names:
                found = next(_wrong(evidence, one, stage=s, name=name), None)
                if found is not None:
                    yield found
                    break


def _wrong(evidence: Evidence, one: Observation, *, stage: int, name: str) -> Iterator[Finding]:
    """Follow one parameter of one rank through the program."""
    import torch

    def shown(values: dict[int, dict[str, Array | None]]) -> Tensor | None:
        found = values.get(stage, {}).get(name)
        return None if found is None else found.tensor()

    case = evidence.case
    assert isinstance(case.optimizer, Sgd)
    follow, gradient, updates, most = None, None, 0, 1
    for expected in evidence.expected.steps:
        step, mine = case.program[expected.step], shown_step(one, expected.step)
        if isinstance(step, Train):
            gradient, most = shown(mine.gradients), max(most, step.num_microbatches)
        if follow is None or isinstance(step, Load):
            start = shown(expected.parameters)
            follow = None if start is None else _Copy(start, case.optimizer, earlier=follow)
        if not isinstance(step, Optimize) or follow is None or gradient is None:
            continue
        follow.step(gradient, num_microbatches=most)
        updates += 1
        parameter = shown(mine.parameters)
        evidence.compared()
        if parameter is None or parameter.shape != follow.value.shape:
            continue  # which other requirements judge
        off = (parameter.double() - follow.value).abs() > follow.bound(parameter)
        if bool(off.any()):
            at = tuple(int(i) for i in torch.nonzero(off)[0])
            yield Finding(
                kind="parameter not rounded from a copy",
                message=(
                    f"the parameter of {name} in stage {stage} is not the float32 copy after {updates} updates\n"
                    f"element {list(at)} is {float(parameter[at]):.9g}; the copy, stepped with the gradients that the "
                    f"rank showed, is {float(follow.value[at]):.9g}"
                ),
                step=expected.step,
                rank=one.rank,
                stage=stage,
            )


class _Copy:
    """A copy in float64 of what an engine keeps in float32, and how far the two may be apart."""

    def __init__(self, start: Tensor, by: Sgd, *, earlier: _Copy | None) -> None:
        self.value = start.double()
        self._by = by
        self._momentum: Tensor | None = None if earlier is None else earlier._momentum
        self._moved = self.value.new_zeros(self.value.shape)
        self._updates = 0

    def step(self, gradient: Tensor, *, num_microbatches: int) -> None:
        """One update of SGD."""
        import torch

        own = gradient.double()
        before = self._momentum
        self._momentum = own if before is None or not self._by.momentum else before * self._by.momentum + own
        change = self._by.lr * self._momentum
        self.value = self.value - change
        # the rank may have used float32 sums of what it showed in 16 bits: m additions, each rounded once
        self._moved += change.abs() * (num_microbatches + 1) * torch.finfo(gradient.dtype).eps
        self._updates += 1

    def bound(self, parameter: Tensor) -> Tensor:
        """How far a parameter may be from the copy: rounded once to 16 bits, and after float32 arithmetic."""
        import torch

        size = torch.maximum(parameter.double().abs(), self.value.abs())
        rounded = torch.finfo(parameter.dtype).eps * size / 2
        return rounded + self._moved + 4 * self._updates * torch.finfo(torch.float32).eps * size
