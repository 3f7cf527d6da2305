"""Faults of batch sources: microbatches that are lost, taken from elsewhere or made up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pipeconform.adapter import Batch, Microbatch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from .fault import breaks

_WRONG = r"is not the reference's|not the mean|output of microbatch|loss of microbatch|source"


class _OtherSource(ReferencePipeline):
    """Runs steps on another source than the given one."""

    def other(
        self, mode: Mode, source: Iterator[Microbatch], *, num_microbatches: int
    ) -> Iterator[Microbatch]:
        """What a step takes its microbatches from."""
        raise NotImplementedError

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if batch.source is not None:
            source = self.other(mode, batch.source, num_microbatches=batch.num_microbatches)
            batch = replace(batch, source=source)
        return super().run(mode, batch)


@breaks("TRN-25", tells=_WRONG)
class SourceReadAhead(_OtherSource):
    """Every step fetches one microbatch ahead, which the next step does not use."""

    def other(
        self, mode: Mode, source: Iterator[Microbatch], *, num_microbatches: int
    ) -> Iterator[Microbatch]:
        found = list(itertools.islice(source, num_microbatches))
        next(source, None)
        return iter(found)


@breaks("TRN-25", tells=_WRONG)
class TargetsReadAhead(_OtherSource):
    """Targets come from an iterator of their own, which was begun one microbatch later."""

    def other(
        self, mode: Mode, source: Iterator[Microbatch], *, num_microbatches: int
    ) -> Iterator[Microbatch]:
        found = list(itertools.islice(source, num_microbatches))
        later = [*found[1:], found[-1]]
        sizes = {one.target.shape for one in found}
        if len(sizes) > 1:
            return iter(found)
        return iter([replace(one, target=other.target) for one, other in zip(found, later, strict=True)])


@breaks("TRN-25", tells=_WRONG)
class FirstSourceKept(_OtherSource):
    """The first batch is kept and given to every later step of its size, as by an iterator that is made anew."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._first: list[Microbatch] = []

    def other(
        self, mode: Mode, source: Iterator[Microbatch], *, num_microbatches: int
    ) -> Iterator[Microbatch]:
        found = list(itertools.islice(source, num_microbatches))
        self._first = self._first or found
        return iter(found if len(found) != len(self._first) else self._first)


@breaks("ERR-18", tells="the source of microbatches ends")
class SourceBegunAgain(_OtherSource):
    """A source that ends is begun again in the middle of the step, as ``RepeatingLoader`` does between epochs."""

    def other(
        self, mode: Mode, source: Iterator[Microbatch], *, num_microbatches: int
    ) -> Iterator[Microbatch]:
        found = list(itertools.islice(source, num_microbatches))
        return itertools.cycle(found)


@breaks("ERR-18", status="hung", tells="the source of microbatches ends")
class OnlyFirstRankNotices(ReferencePipeline):
    """The rank of the first stage returns when its source ends, and all others go on without it."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if batch.source is None:
            return super().run(mode, batch)
        found = list(itertools.islice(batch.source, batch.num_microbatches))
        several = len(self.plan.ranks.pipeline_ranks) > 1
        if several and len(found) < batch.num_microbatches:
            if 0 in self.modules:
                return StepResult()
            # in the place of what the first rank would have sent: they wait for it
            return super().run(mode, replace(batch, source=itertools.cycle(found)))
        return super().run(mode, replace(batch, source=iter(found)))


@breaks("DPC-10", tells=_WRONG)
class SourceDividedTwice(_OtherSource):
    """In training, replicas take turns in their sources, as if all had the same one."""

    def other(
        self, mode: Mode, source: Iterator[Microbatch], *, num_microbatches: int
    ) -> Iterator[Microbatch]:
        ranks = self.plan.ranks
        if mode is Mode.EVAL:
            return source
        mine = itertools.islice(source, ranks.replica, None, ranks.num_replicas)
        return iter(list(itertools.islice(mine, num_microbatches)))
