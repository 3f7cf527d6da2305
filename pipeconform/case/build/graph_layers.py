"""Modules whose autograd graphs are hard to split into input and weight parts of the backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeconform.case import blocks

__all__ = ["deferred_weights", "graph_layer"]


class _Pieces(nn.Module):
    """A node with several outputs, each used differently."""

    def __init__(self, width: int, how: str) -> None:
        super().__init__()
        self.wide, self.how = nn.Linear(width, 2 * width), how

    def forward(self, x: Tensor) -> Tensor:
        both: Tensor = self.wide(x)
        if self.how == "chunk":
            a, b = both.chunk(2, dim=-1)
        elif self.how == "split":
            a, b = both.split(x.shape[-1], dim=-1)  # type: ignore[no-untyped-call]
        else:
            a, b = both.unflatten(-1, (2, x.shape[-1])).unbind(-2)  # type: ignore[no-untyped-call]
        return a * torch.tanh(b)


class _Common(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # `third` is registered last and joins the path together with each of the others
        self.first, self.second, self.third = (nn.Parameter(torch.empty(width)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((x + (self.first + self.third)) * (x + (self.second + self.third)))


class _Offsets(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.first, self.second = (nn.Parameter(torch.empty(width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        # the sums have exactly the parameters' shape, so one tensor is the gradient of both
        pooled = torch.tanh(self.linear(x)).flatten(0, -2).mean(0)
        return x + (pooled + self.first + self.second)


class _Combined(nn.Module):
    def __init__(self, width: int, how: Literal["added", "rows"]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        shape = (width, width) if how == "added" else (3, width)
        self.how, self.further = how, nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "added":
            return functional.linear(x, self.linear.weight + self.further, self.linear.bias)
        y: Tensor = self.linear(x)
        return y + self.further.sum(0)


class _Joined(nn.Module):
    """A node that computes a gradient for an input that needs none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.learned, self.linear = nn.Parameter(torch.empty(width)), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.cat([x, self.learned.expand_as(x), torch.ones_like(x)], dim=-1)
        return torch.tanh(self.linear(wide))


class _Accumulating(nn.Module):
    """A linear map whose parameters have post-accumulate-grad hooks, which count."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires: Counter[str] = Counter()
        for parameter in self.linear.parameters():
            parameter.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]

    def _added(self, _parameter: Tensor) -> None:
        self.fires["post_accumulate_grad"] += 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


class _InputGradientOnly(torch.autograd.Function):
    """A linear map that records the factors of its weight's gradient instead of computing it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pending: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pending = pending
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.pending.append((x.detach(), gradients[0]))
        return gradients[0] @ weight, None, None


class DeferredLayer(nn.Module):
    """A linear map without bias whose weight gradient the stage's deferred-weight function computes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.fires: Counter[str] = Counter()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _InputGradientOnly.apply(x, self.weight, self.pending)  # type: ignore[no-untyped-call]
        return y

    def build(self) -> Callable[..., None]:
        """Take what the last backward recorded, and return a function that adds the weight's gradient."""
        self.fires["deferred_weight_builder"] += 1
        taken = list(self.pending)
        self.fires["deferred_weight_entry"] += len(taken)
        self.pending.clear()

        def run(*_: object) -> None:
            self.fires["deferred_weight_function"] += 1
            with torch.no_grad():
                for x, gradient in taken:
                    found = gradient.flatten(0, -2).t() @ x.flatten(0, -2)
                    self.weight.grad = found if self.weight.grad is None else self.weight.grad + found

        return run


def deferred_weights(module: nn.Module) -> Callable[[], Callable[..., None]] | None:
    """A stage module's deferred-weight builder, see `pipeconform.adapter.Plan`; None if it needs none."""
    layers = [part for part in module.modules() if isinstance(part, DeferredLayer)]
    if not layers:
        return None

    def build() -> Callable[..., None]:
        functions = [layer.build() for layer in layers]

        def run(*_: object) -> None:
            for function in functions:
                function()

        return run

    return build


def graph_layer(block: blocks.Block, width: int) -> nn.Module:
    """A new module for one of the blocks of this file.

    Raises:
        TypeError: the block is not one of them.
    """
    match block:
        case blocks.Pieces(how=how):
            return _Pieces(width, how)
        case blocks.Common():
            return _Common(width)
        case blocks.Offsets():
            return _Offsets(width)
        case blocks.Combined(how=how):
            return _Combined(width, how)
        case blocks.Joined():
            return _Joined(width)
        case blocks.Accumulating():
            return _Accumulating(width)
        case blocks.Deferred():
            return DeferredLayer(width)
    raise TypeError(f"no module for block {block!r}")
