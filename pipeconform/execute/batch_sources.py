"""The sources from which steps take their microbatches, if they do not get whole batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from pipeconform.adapter import Batch, Microbatch
from pipeconform.case.case import Case, Eval, Train

__all__ = ["BatchSources"]


class BatchSources:
    """The sources of one pipeline: one for all training steps of a case, and one for its evaluations."""

    def __init__(self) -> None:
        self._open: dict[type[Train | Eval], tuple[int, Iterator[Microbatch]]] = {}

    def at(self, case: Case, index: int, batch_of: Callable[[int], Batch]) -> Iterator[Microbatch]:
        """The source for step `index`: that of the step before of its kind, or a new one where a step is repeated."""
        kind = type(case.program[index])
        assert issubclass(kind, Train | Eval)
        last, source = self._open.get(kind, (index, iter(())))
        if index <= last:
            source = _from(case, index, batch_of)
        self._open[kind] = (index, source)
        return source


def _from(case: Case, first: int, batch_of: Callable[[int], Batch]) -> Iterator[Microbatch]:
    """The microbatches of step `first` and all later ones of its kind, up to where the case ends the source.

    One for training then begins again, as data does between epochs, so that a microbatch that was lost is not noticed
    at its end; one for evaluations ends.
    """
    kind = type(case.program[first])
    # all are made now: inside a step, the caller's gradient mode and autocast would apply to them
    found: list[tuple[Microbatch, ...]] = []
    for index, step in enumerate(case.program):
        if index < first or type(step) is not kind:
            continue
        microbatches = batch_of(index).microbatches
        if isinstance(step, Train) and step.mistake is not None and step.mistake.where == "source":
            found.append(microbatches[: step.mistake.microbatch])
            return itertools.chain.from_iterable(found)
        found.append(microbatches)
    every = itertools.chain.from_iterable(found)
    return itertools.cycle(every) if kind is Train else every
