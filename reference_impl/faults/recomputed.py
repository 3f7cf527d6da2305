"""Faults of engines that keep no activations and compute stages again in the backward (TRN-30)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..containers import leaves_of
from ..stage import Stage
from .fault import breaks


@breaks("TRN-30")
class RecomputesWithOtherNumbers(Stage):
    """The random numbers of the first time are not restored: what is computed again drops other values."""

    def compute_twice(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return checkpoint(self.module, *arguments, use_reentrant=False, preserve_rng_state=False, **kwargs)


@breaks("TRN-30", tells="its activations were kept")
class ActivationsKept(Stage):
    """Nothing is computed again, although it was asked for."""

    def compute_twice(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.module(*arguments, **kwargs)


@breaks("TRN-30")
class StagesOfTokensLearnNothing(Stage):
    """A stage none of whose inputs requires a gradient takes no part in the backward: an embedding learns nothing."""

    def compute_twice(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        wanted = any(isinstance(one, Tensor) and one.requires_grad for one in leaves_of(arguments))
        if wanted:
            return super().compute_twice(arguments, kwargs)
        with torch.no_grad():
            output = self.module(*arguments, **kwargs)
        for leaf in leaves_of(output):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.requires_grad_()
        return output


@breaks("TRN-30")
class RecomputesFromTheLatest(Stage):
    """Only the inputs of the latest microbatch are kept: earlier ones are computed again from them."""

    _latest: Sequence[Any] = ()

    def compute_twice(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._latest = arguments
        return checkpoint(_Kept(self), *arguments, use_reentrant=False, **kwargs)


class _Kept(nn.Module):
    """The stage's module, which is run on the latest inputs when it is run again."""

    def __init__(self, stage: RecomputesFromTheLatest) -> None:
        super().__init__()
        self._stage, self._again = [stage], False

    def forward(self, *arguments: Any, **kwargs: Any) -> Any:
        stage = self._stage[0]
        latest = stage._latest if self._again else arguments
        self._again = True
        fits = [getattr(one, "shape", None) for one in latest] == [
            getattr(one, "shape", None) for one in arguments
        ]
        return stage.module(*(latest if fits else arguments), **kwargs)
