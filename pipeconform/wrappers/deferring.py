"""Modules whose parts can initialise themselves, for those that are materialised after they were wrapped."""

from __future__ import annotations

import functools
import itertools

import torch
from torch import nn

__all__ = ["initialised"]


def initialised(module: nn.Module, *, above: float) -> None:
    """Let every part below `module` have a ``reset_parameters()``, and call it.

    Values are constants, another one for every parameter, `above` higher: what is filled in place can be a shard.
    Batch norms keep their own way. What `module` has itself, without a part, nobody initialises.
    """
    numbers = itertools.count(1)
    for part in list(module.modules())[1:]:
        values = [0.05 * next(numbers) + above for _ in part.parameters(recurse=False)]
        if not values:
            continue
        if not isinstance(part, nn.BatchNorm1d):
            part.reset_parameters = functools.partial(_fill, part, values)  # type: ignore[assignment]
        part.reset_parameters()  # type: ignore[operator]  # nothing says that a module has one


def _fill(part: nn.Module, values: list[float]) -> None:
    with torch.no_grad():
        for parameter, value in zip(part.parameters(recurse=False), values, strict=True):
            parameter.fill_(value)
