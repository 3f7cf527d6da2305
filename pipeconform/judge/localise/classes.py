"""Whether one tensor that passes between stages has left its numeric class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from pipeconform.bounds.numerics import Mismatch, compare, enormous
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence, missing
from pipeconform.judge.localise.hints import scaled
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Flow, Reference

__all__ = ["Classes", "Passage", "passages_of"]

Passage = tuple[str, int, int, int]
"""Kind, stage, microbatch and position; for a loss, only its microbatch matters."""


def passages_of(flow: Iterable[Flow]) -> dict[Passage, Flow]:
    """The oracle's values, by place."""
    return {(one.kind, one.stage, one.call, one.position): one for one in flow}


class Classes:
    """Compares values with the oracle's: bit for bit first, then within the bounds of running error analysis."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._flow: dict[int, dict[Passage, Flow]] = {}
        self.are_bounded = True
        """False if bounds were needed and an operation has none."""

    def judged(
        self, step: int, right: Array | None, mine: Array | None, passage: Passage, *, scale: float = 1.0
    ) -> tuple[Mismatch | None, bool]:
        """How a value differs, and whether it does by more than its bound times `scale`."""
        if right is None or mine is None:
            return (None, False) if right is mine else (missing(right, mine), True)
        found = compare(right, mine)
        if found is None or found.kind != "value":
            return found, found is not None
        if self._bounds is None:
            return found, enormous(right, mine, scale=self._evidence.scale)
        known = self._bound(step, passage)
        if known is None:
            return found, True
        bounded = compare(right, mine, bound=scaled(known, abs(scale)))
        return bounded or found, bounded is not None

    def best(
        self, step: int, right: Array, mine: Sequence[Array], passage: Passage, *, scale: float
    ) -> tuple[Mismatch | None, bool, Array | None]:
        """The best of several comparisons, and the value that was compared.

        A gradient may pass in parts, which add up, or repeatedly; no gradient counts as zeros.
        """
        if not mine:
            is_due = any(right.data)
            return (missing(right, None) if is_due else None), is_due, None
        candidates = [*mine, _sum(mine)] if len(mine) > 1 else mine
        judged = [self.judged(step, right, one, passage, scale=scale) for one in candidates]
        for (_, exceeds), one in zip(judged, candidates, strict=True):
            if not exceeds:
                return None, False, one
        return *judged[0], candidates[0]

    def give_up(self) -> None:
        """From now on, use `numerics.enormous` in place of bounds."""
        self.__dict__["_bounds"] = None
        self.are_bounded = False

    @cached_property
    def _bounds(self) -> Reference | None:
        try:
            return self._evidence.bounded("running")
        except HarnessError:
            self.are_bounded = False
            return None

    def _bound(self, step: int, passage: Passage) -> Array | None:
        assert self._bounds is not None
        expected = self._bounds.steps[step]
        if passage[0] == "loss":
            return expected.loss_bounds[passage[2]]
        if step not in self._flow:
            self._flow[step] = passages_of(expected.flow)
        known = self._flow[step].get(passage)
        return None if known is None else known.bound


def _sum(arrays: Sequence[Array]) -> Array:
    total = arrays[0].tensor()
    for one in arrays[1:]:
        total = total + one.tensor()
    return Array.of(total)
