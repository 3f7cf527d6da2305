"""Faults of compiled stages: a compiled region is one node of the graph, and no two."""

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
    """The weight part passes over compiled regions.

    The weight part looks for seams in the graph and passes over a compiled region, which has none.
    """

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        part = getattr(self._weight_parts[microbatch], "__self__", None)
        if part is not None:
            part.kept = _kept_nodes(part)
        return found


@breaks("FWD-20", tells="stages hold compiled modules, but no error says so")
class CompiledRefusedBlindly(ReferencePipeline):
    """Compiled modules are refused by a rank that has some, without a word about it."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        if any(hasattr(part, "_orig_mod") for module in self.modules.values() for part in module.modules()):
            raise ValueError("unsupported module")
