"""The expected forward in another precision: everything is cast, and gradients flow back through the casts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipeconform.wrapper import WrapOptions

__all__ = ["run_in"]


def run_in(options: WrapOptions, module: nn.Module, batch: Tensor, *more: Any) -> Any:
    """Call the module with parameters, batch and buffers in the dtypes of `options`; buffers are updated.

    Parameters that the wrapper leaves to the user keep their dtype.
    """
    if options.param_dtype is None and options.buffer_dtype is None:
        return module(batch, *more)
    managed = {name: p for name, p in module.named_parameters() if name not in options.ignored}
    parameters = {name: _cast(p, options.param_dtype) for name, p in managed.items()}
    buffers = {name: _cast(b, options.buffer_dtype) for name, b in module.named_buffers()}
    output = functional_call(module, {**parameters, **buffers}, (_cast(batch, options.param_dtype), *more))
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return output


def _cast(tensor: Tensor, dtype: str | None) -> Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(getattr(torch, dtype))
