"""Modules for wrappers to shard: nested parts of uneven sizes, which need padding."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn

from pipeconform.case.seeds import seed_of
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.sharding import EXPERT, ShardedModule
from pipeconform.wrapper_tools.delays import Delayed
from pipeconform.wrappers.groups import group_of

__all__ = ["APART", "DELAY", "SHARDED_MODULES", "build_sharded", "compile_parts"]

SHARDED_MODULES: tuple[str, ...] = get_args(ShardedModule)
APART = ("apart.bias", "apart.weight")
"""The parameters of the child that is ignored."""
DELAY = 0.05
"""The delay of the last rank in seconds, if a case delays it."""


class Layer(nn.Module):
    """``tanh(x W + b)``, in the dtype of the weight."""

    def __init__(self, enters: int, leaves: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(leaves, enters, dtype=torch.float64))
        self.bias = nn.Parameter(torch.empty(leaves, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias))


class Gain(nn.Module):
    """Multiplies by a single number, so that on several ranks some shards are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Pair(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(5, 3), Layer(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return x.to(result.dtype) + result


class Blocks(nn.Module):
    """Input ``[3, 4]`` float64, output ``[3, 3]``."""

    def __init__(self, kind: str, middle: nn.Module) -> None:
        super().__init__()
        self.enter, self.middle = Layer(4, 5), middle
        match kind:
            case "few":
                self.gain = Gain()
            case "apart":
                self.apart = Layer(5, 5)
            case "experts":
                self.expert = Layer(5, 5)
        self.leave = Layer(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.middle(self.enter(x))
        for name in ("gain", "apart", EXPERT):
            part = getattr(self, name, None)
            if part is not None:
                hidden = part(hidden)
        result: Tensor = self.leave(hidden)
        return result


def build_sharded(case: WrapperCase, *, rank: int) -> nn.Module:
    """The replica of a rank with its initial values, equal on all ranks except for ignored parameters and experts."""
    late = DELAY if rank == case.ranks - 1 else 0.0
    middle: nn.Module = Pair()
    if case.slow in ("loss", "freeing"):
        middle = Delayed(middle, **{case.slow: late})
    module = Blocks(case.module, middle)
    if case.module == "partly":
        module.get_parameter("middle.first.weight" if case.slow == "" else "enter.weight").requires_grad_(
            False
        )
    generator = torch.Generator().manual_seed(seed_of(case.seed, "module", 0))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * 0.5 + _own(case, name, rank))
    return module


def _own(case: WrapperCase, name: str, rank: int) -> float:
    if name in case.options.ignored:
        return 0.1 * rank
    return 0.1 * min(group_of(case, name, rank)) if name.startswith(f"{EXPERT}.") else 0.0


def compile_parts(module: nn.Module) -> None:
    """Compile the forward of every computing part in place; what a wrapper adds to a part is not compiled."""
    torch.compiler.reset()  # torch keeps about eight versions of a function, then runs it uncompiled
    for part in module.modules():
        if isinstance(part, Layer):
            compiled: Any = torch.compile(part.forward, backend="aot_eager")
            part.forward = compiled  # type: ignore[method-assign]
