"""Faults of compiled stages: a compiled region is a single node of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks


def _kept_nodes(part: Any) -> list[Any]:
    return [kept for kept in part.kept if "Compiled" not in type(kept.node).__name__]


@breaks("FWD-20", schedule="ZB-H1", tells=r"gradient of .* in stage \d")
class CompiledSkipped(Stage):
    """The weight part skips compiled regions, because it looks for seams in the graph and they have none."""

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        part = getattr(self._weight_parts[microbatch], "__self__", None)
        if part is not None:
            part.kept = _kept_nodes(part)
        return found


@breaks("FWD-20", tells="stages hold compiled modules, but no error says so")
class CompiledRefusedBlindly(ReferencePipeline):
    """A rank with compiled modules refuses them without saying that they are the reason."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        if any(hasattr(part, "_orig_mod") for module in self.modules.values() for part in module.modules()):
            raise ValueError("unsupported module")
