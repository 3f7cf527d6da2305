"""A stage as a layer of an engine that chains its layers by itself."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["Chained"]


class Chained(nn.Module):
    """Passes the previous layer's return value to `inner`: a tuple is spread out, anything else is one argument."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Any) -> Any:
        """Run `inner` on one boundary."""
        return self.inner(*inputs) if isinstance(inputs, tuple) else self.inner(inputs)
