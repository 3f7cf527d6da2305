"""Faults of parameters that stages share: some of them do not get the whole gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..adapter import ReferencePipeline
from ..front_end import Ties
from ..link import Link
from .fault import breaks


@breaks("TRN-8", schedule="Interleaved1F1B", tells=r"gradient of tied in stage \d")
class StagesKeepTheirOwn(ReferencePipeline):
    """Stages of one rank that share a parameter hold separate ones, each with its part of the gradient."""

    def share_parameters(self) -> None:
        pass


@breaks("TRN-8", tells=r"gradient of tied in stage \d")
class RanksKeepTheirOwn(ReferencePipeline):
    """Ranks that share a parameter keep their own gradients."""

    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return super().make_ties(())


class _OneSidedTies(Ties):
    def _exchange(self, link: Link, *, failure: str | None) -> None:
        before = [parameter.grad for parameter, _ in self._tied]
        super()._exchange(link, failure=failure)
        for (parameter, holders), own in zip(self._tied, before, strict=True):
            if self._position != holders[0]:
                parameter.grad = own


@breaks("TRN-8", tells="gradient of tied in stage [1-9]")
class FirstHolderOnly(ReferencePipeline):
    """Only the first rank that shares a parameter gets the sum of the gradients."""

    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return _OneSidedTies(shared, self.modules, placement=self.placement, position=self.position)
