"""Faults of what a pipeline saves, and of what the next one takes over (LIF-10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..adapter import ReferencePipeline
from ..saved import SavedRank
from .fault import breaks

_NOT_SAVED = r"the {} of [\w.]+ in stage \d is not what was saved"
_WRONG = r"the parameter of [\w.]+ in stage \d is not (the reference|the float32 copy)"


@contextmanager
def _kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Give tensors, at the end, the values that they have now."""
    before = [(one, one.detach().clone()) for one in tensors]
    yield
    with torch.no_grad():
        for one, value in before:
            one.copy_(value)


@breaks("LIF-10", tells=_WRONG)
class OptimizerBegunAnew(SavedRank):
    """Parameters are restored, but not the optimizer's state."""

    def take(self, contents: Mapping[str, Any]) -> None:
        self.optimizer = None
        super().take(contents)


@breaks("LIF-10", tells=_NOT_SAVED.format("buffer"))
class BuffersLeftOut(SavedRank):
    """Only parameters are restored: running statistics begin anew."""

    def take(self, contents: Mapping[str, Any]) -> None:
        with _kept(buffer for module in self.modules.values() for buffer in module.buffers()):
            super().take(contents)


@breaks("LIF-10", tells=_NOT_SAVED.format("parameter"))
class FrozenLeftOut(SavedRank):
    """What the optimizer does not step is not restored."""

    def take(self, contents: Mapping[str, Any]) -> None:
        held = (parameter for module in self.modules.values() for parameter in module.parameters())
        with _kept(parameter for parameter in held if not parameter.requires_grad):
            super().take(contents)


@breaks("LIF-10", tells=_WRONG)
class CopiesMadeAnew(SavedRank):
    """Copies are made from the restored parameters of 16 bits: what rounding had taken is lost."""

    def take(self, contents: Mapping[str, Any]) -> None:
        super().take(contents)
        if self.masters is not None:
            self.masters.reload()


@breaks("LIF-10", tells=_WRONG)
class CopiesLeftOut(SavedRank):
    """Parameters are restored, but not their copies, which the next update puts into the parameters."""

    def take(self, contents: Mapping[str, Any]) -> None:
        with _kept(() if self.masters is None else self.masters.copies.values()):
            super().take(contents)


@breaks("LIF-10", tells=r"scales the next losses by|parameter of [\w.]+ in stage \d")
class ScaleBegunAnew(SavedRank):
    """The scale of the loss begins as the plan says."""

    def take(self, contents: Mapping[str, Any]) -> None:
        scale, self.scale = self.scale, None
        super().take(contents)
        self.scale = scale


@breaks("LIF-10", tells=_WRONG)
class UpdatesCountedAnew(SavedRank):
    """Adam's means are restored, but not how many updates they are means of."""

    def take(self, contents: Mapping[str, Any]) -> None:
        super().take(contents)
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                if "step" in state:
                    state["step"] = torch.zeros_like(state["step"])


@breaks("LIF-10", tells=_NOT_SAVED.format("parameter"))
class TiedWeightsSavedOnce(ReferencePipeline):
    """A tied weight is restored in the first of its stages only."""

    def restore(self, folder: Path) -> None:
        further = [(s, name) for tie in self.plan.tied for s, name in sorted(tie.items())[1:]]
        with _kept(self.modules[s].get_parameter(name) for s, name in further if s in self.modules):
            super().restore(folder)
