"""The reference with parameters that lie one after the other in a buffer, as engines that shard or reduce keep them."""

from __future__ import annotations

import torch
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline


class FlatPipeline(ReferencePipeline):
    """Every parameter begins in the middle of what a processor loads at once."""

    def share_parameters(self):
        super().share_parameters()
        for parameter in self.own_parameters():
            flat = torch.empty(parameter.numel() + 1, dtype=parameter.dtype)
            flat[1:].copy_(parameter.detach().reshape(-1))
            parameter.data = flat[1:].view_as(parameter)


class Flat(ReferenceAdapter):
    pipeline = FlatPipeline
