"""Faults of parameters that stages hold together: parts of the gradient that somebody does not get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..front_end import Ties
from ..link import Link


class _StagesKeepTheirOwn(ReferencePipeline):
    def share_parameters(self) -> None:
        pass


class StagesKeepTheirOwn(ReferenceAdapter):
    """Stages of one rank that are to hold a parameter together hold equal ones, each with its part of the gradient."""

    pipeline = _StagesKeepTheirOwn


class _RanksKeepTheirOwn(ReferencePipeline):
    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return super().make_ties(())


class RanksKeepTheirOwn(ReferenceAdapter):
    """Nobody adds up what ranks that hold a parameter together have."""

    pipeline = _RanksKeepTheirOwn


class _OneSidedTies(Ties):
    def _exchange(self, link: Link, *, failure: str | None) -> None:
        before = [parameter.grad for parameter, _ in self._tied]
        super()._exchange(link, failure=failure)
        for (parameter, holders), own in zip(self._tied, before, strict=True):
            if self._position != holders[0]:
                parameter.grad = own


class _FirstHolderOnly(ReferencePipeline):
    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return _OneSidedTies(shared, self.modules, placement=self.placement, position=self.position)


class FirstHolderOnly(ReferenceAdapter):
    """The sum is made on the first of the ranks that hold a parameter, and never reaches the others."""

    pipeline = _FirstHolderOnly
