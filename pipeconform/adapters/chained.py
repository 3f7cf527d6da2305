"""A stage among the layers of an engine that chains them by itself."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Chained"]


class Chained(nn.Module):
    """A layer takes what the one before returned as one argument: a tuple is spread out for `inner`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Any) -> Any:
        """Run `inner` on one boundary."""
        return self.inner(*inputs) if isinstance(inputs, tuple) else self.inner(inputs)
