"""The reference, on stages whose own tensors must be such that an engine can free their memory and give it back."""

from __future__ import annotations

from typing import Any

import torch
from pipeconform.reference_impl.adapter import ReferenceAdapter
from torch import nn
from torch.utils import _pytree as tree

from pipeconform.adapter import Plan


class MemoryFixedError(RuntimeError):
    """A tensor's memory cannot be freed by ``untyped_storage().resize_(0)``."""


def _require_resizable(module: nn.Module, given: Any, output: Any) -> None:
    parameters = list(module.parameters())
    # what arrived at a later stage lies in a message of the reference, one buffer for several tensors
    inputs = given if getattr(module, "index", 0) == 0 else ()
    for what, tensors in (("input", inputs), ("output", output), ("parameter", parameters)):
        for tensor in tree.tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor) and not tensor.untyped_storage().resizable():
                raise MemoryFixedError(f"{what} {tuple(tensor.shape)}")


class FreesOutputs(ReferenceAdapter):
    def build(self, plan: Plan) -> Any:
        pipeline = super().build(plan)
        for module in pipeline.owned().values():
            module.register_forward_hook(_require_resizable)
        return pipeline
