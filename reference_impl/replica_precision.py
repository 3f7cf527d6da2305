"""Mixed precision: the module computes with casts of its parameters; gradients come back through the casts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["MixedPrecision", "run_mixed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedPrecision:
    """Floating dtypes; None leaves the present ones."""

    param_dtype: torch.dtype | None = None
    """For parameters in the forward, and for its floating inputs."""
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None


def run_mixed(
    module: nn.Module, how: MixedPrecision, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call the module with everything cast; its changes to buffers are kept."""
    names, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    cast = {name: _cast(p, how.param_dtype) for name, p in names.items()}
    lent = {name: _cast(b, how.buffer_dtype) for name, b in buffers.items()}
    given, named = _cast((args, dict(kwargs)), how.param_dtype)
    result = functional_call(module, {**cast, **lent}, given, named)
    with torch.no_grad():
        for name, buffer in buffers.items():
            if lent[name] is not buffer:
                buffer.copy_(lent[name])
    return result


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    """Every floating tensor in plain containers, in another dtype."""
    if isinstance(value, Tensor):
        return value if dtype is None or not value.is_floating_point() else value.to(dtype)
    if isinstance(value, dict):
        return {key: _cast(item, dtype) for key, item in value.items()}
    return type(value)(_cast(item, dtype) for item in value) if type(value) in (tuple, list) else value
