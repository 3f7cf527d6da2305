"""What a judgement looks at.

A judgement is a pure function from `Evidence` to findings. It is called only for cases to which its requirement
applies, and only if every rank returned; ranks that raised, died or hung are findings of their own (`judge.outcome`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pipeconform.adapter import Capabilities, Placement, laid_out
from pipeconform.bounds.gauge import Gauge, Uncounted
from pipeconform.bounds.numerics import (
    Mismatch,
    compare,
    enormous,
    magnitude,
    measure,
    near_overflow,
    tells_from_zero,
)
from pipeconform.case.case import Case, Eval, Step, Train
from pipeconform.judge.finding import Finding
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Named, Observation, Reference, StepExpected, StepShown

if TYPE_CHECKING:
    from pipeconform.oracle.full_model import Bounds

__all__ = ["Evidence", "Finding", "Judge", "Numbers", "held", "missing", "shown_step", "unheld"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One execution of one case: what the ranks showed and what the oracle computed."""

    case: Case
    capabilities: Capabilities
    shown: tuple[Observation, ...]
    """What each rank showed, in rank order, including bystanders."""
    expected: Reference
    bounded: Callable[[Bounds], Reference]
    """Computes the same reference with error bounds; called only when bits differ."""
    thorough: bool = True
    """False where no verdict depends on the answer: an enormous difference then needs no bound."""
    gauge: Gauge = field(default_factory=Gauge, compare=False)
    """Records how much was compared, and how close accepted values come to their bounds."""

    def compared(self, number: int = 1) -> None:
        """Count `number` comparisons, whatever their result.

        A judgement whose loops never run counts nothing, and does not pass.
        """
        self.gauge.count(number)

    @property
    def uncounted(self) -> Evidence:
        """The same evidence for a judgement that only supports another one: its comparisons do not count."""
        return replace(self, gauge=Uncounted(self.gauge))

    @property
    def members(self) -> Iterator[Observation]:
        """The observations of pipeline ranks."""
        return (one for one in self.shown if one.pipeline_rank is not None)

    @cached_property
    def placement(self) -> tuple[frozenset[int], ...]:
        """For each stage the pipeline ranks that own it."""
        claim = self.capabilities.schedule(self.case.schedule)
        return laid_out(
            claim.placement if claim else Placement.LOOP,
            num_ranks=self.case.num_ranks,
            num_stages=self.case.num_stages,
        )

    @cached_property
    def scale(self) -> float:
        """The largest gradient, parameter or buffer that the oracle showed."""
        return magnitude(self._computed())

    @cached_property
    def overflows(self) -> bool:
        """Whether what the oracle computed comes near to the largest numbers, as a training does that diverges.

        What differs then may be the order of additions, and is not judged.
        """
        return near_overflow(self._computed())

    def _computed(self) -> Iterator[Array | None]:
        return (
            array
            for step in self.expected.steps
            for values in (step.gradients, step.parameters, step.buffers)
            for named in values.values()
            for array in named.values()
        )

    def runs(self, kind: type[Step] | tuple[type[Step], ...] = (Train, Eval)) -> Iterator[StepExpected]:
        """The reference after each step of that kind."""
        return (e for e in self.expected.steps if isinstance(self.case.program[e.step], kind))

    def sizes(self, step: int) -> list[int]:
        """The sizes of the microbatches of a run."""
        from pipeconform.case.build.data import split_sizes

        run = self.case.program[step]
        assert isinstance(run, Train | Eval)
        return split_sizes(run.batch_size, run.num_microbatches)

    def owners(self, stage: int) -> Iterator[Observation]:
        """The observations of the ranks that own `stage`."""
        return (one for one in self.members if one.pipeline_rank in self.placement[stage])

    def result_ranks(self, where: str) -> frozenset[int]:
        """The pipeline ranks that hold a result declared to be on ``last_stage`` or ``all``."""
        return self.placement[-1] if where == "last_stage" else frozenset(range(self.case.num_ranks))


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Comparison of computed values with the oracle's: bit for bit first, within the bound otherwise.

    When bits differ the oracle runs once more, first for the bound of another order of microbatches
    (cheap), then, if that is exceeded, under running error analysis for the bound that any correct
    order of the same operations keeps.
    """

    evidence: Evidence

    def differs(
        self,
        expected: Array | None,
        actual: Array | None,
        bound: Callable[[Reference], Array | None],
    ) -> Mismatch | None:
        """Compare one value; `bound` finds its bound in the bounded reference.

        What zeros would have passed, too, because its bound is as large as the value, does not count as compared.
        """
        found, compared = self._judged(expected, actual, bound)
        if compared:
            self.evidence.compared()
        return found

    def _judged(
        self, expected: Array | None, actual: Array | None, bound: Callable[[Reference], Array | None]
    ) -> tuple[Mismatch | None, bool]:
        """What differs, and whether anything was compared."""
        if expected == actual:
            return None, expected is not None
        if expected is None or actual is None:
            return missing(expected, actual), True
        found = compare(expected, actual)
        if found is None or found.kind != "value":
            return found, True
        if self.evidence.overflows:
            return None, True
        if not self.evidence.thorough and enormous(expected, actual, scale=self.evidence.scale):
            return found, True
        levels: tuple[Bounds, ...] = ("reassociated", "running")
        for level in levels:
            known = bound(self.evidence.bounded(level))
            if known is None:
                continue
            found, most = measure(expected, actual, bound=known)
            if found is None:
                self.evidence.gauge.note(most)
                return None, tells_from_zero(expected, known)
        return found, True

    def named(
        self,
        expected: Named,
        actual: Named,
        bound: Callable[[Reference], Named],
    ) -> Iterator[tuple[str, Mismatch]]:
        """Compare parameters, gradients or buffers by name."""
        for name in {**expected, **actual}:

            def one(reference: Reference, name: str = name) -> Array | None:
                return bound(reference).get(name)

            found = self.differs(expected.get(name), actual.get(name), one)
            if found is not None:
                yield name, found


def missing(expected: Array | None, actual: Array | None) -> Mismatch:
    """The mismatch of a value that exists on one side only."""
    return Mismatch(
        kind="missing" if actual is None else "unexpected",
        expected=None if expected is None else repr(expected),
        actual=None if actual is None else repr(actual),
    )


def held(shown: StepShown, num_microbatches: int) -> tuple[int, ...]:
    """The microbatches that a rank's output and losses belong to: all, unless the rank says which."""
    return tuple(range(num_microbatches)) if shown.microbatches is None else shown.microbatches


def unheld(evidence: Evidence, expected: StepExpected, holders: Iterable[Observation]) -> Iterator[Finding]:
    """A finding if the ranks that hold results do not, together, hold those of all microbatches."""
    m = len(evidence.sizes(expected.step))
    evidence.compared()
    seen = {k for one in holders for k in held(shown_step(one, expected.step), m)}
    if len(seen) < m:
        absent = [str(k) for k in range(m) if k not in seen]
        which = f"microbatch{'es' * (len(absent) > 1)} {', '.join(absent)}"
        text = f"no rank says that it holds the results of {which}"
        yield Finding(kind="microbatches missing", message=text, step=expected.step)


Judge = Callable[[Evidence], Iterator[Finding]]


def shown_step(one: Observation, step: int) -> StepShown:
    """What a rank showed after program step `step`."""
    return one.steps[step]
