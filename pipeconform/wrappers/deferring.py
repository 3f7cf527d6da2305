"""Makes modules whose parts initialise themselves, for cases that materialise a module after wrapping it."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import nn

__all__ = ["initialised"]


def initialised(module: nn.Module, *, above: float) -> None:
    """Give every submodule of `module` a ``reset_parameters()``, and call it.

    Every parameter gets a constant of its own, raised by `above`, because a shard can be filled in place as well. Batch
    norms keep their own ``reset_parameters()``. Parameters of `module` itself are not initialised.
    """
    numbers = itertools.count(1)
    for part in list(module.modules())[1:]:
        values = [0.05 * next(numbers) + above for _ in part.parameters(recurse=False)]
        if not values:
            continue
        if not isinstance(part, nn.BatchNorm1d):
            part.reset_parameters = functools.partial(_fill, part, values)  # type: ignore[assignment]
        part.reset_parameters()  # type: ignore[operator]  # modules need not have one


def _fill(part: nn.Module, values: list[float]) -> None:
    with torch.no_grad():
        for parameter, value in zip(part.parameters(recurse=False), values, strict=True):
            parameter.fill_(value)
