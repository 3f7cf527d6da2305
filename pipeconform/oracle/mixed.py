"""Stages that compute in bfloat16 while their parameters are in float32, as in ``fully_shard`` with mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["Call", "narrowed"]

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""What is called with which positional and keyword arguments."""


def narrowed(stage: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """What is called with which arguments: all parameters and floating arguments are cast, buffers are not.

    The gradients of the casts are in float32, and so are their sums over microbatches.
    """
    parameters = {name: parameter.to(torch.bfloat16) for name, parameter in stage.named_parameters()}

    def call(*given: Any, **named: Any) -> Any:
        return functional_call(stage, parameters, given, named)

    return call, [_cast(one) for one in args], {name: _cast(one) for name, one in kwargs.items()}


def _cast(value: Any) -> Any:
    return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.is_floating_point() else value
