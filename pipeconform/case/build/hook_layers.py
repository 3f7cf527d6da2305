"""Modules with hooks on gradients: of a stage's inputs, of parameters, and of a module's backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor, nn

__all__ = ["GradientHookedLayer", "InputHookedLayer"]


class InputHookedLayer(nn.Module):
    """A linear map that hooks the inputs of its stage, which calls `watch` in every forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires: Counter[str] = Counter()

    def watch(self, inputs: Iterable[Any]) -> None:
        """Hook every input that needs a gradient: the tensors as the engine gave them, no views of them."""
        for value in inputs:
            if isinstance(value, Tensor) and value.requires_grad:
                value.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: Tensor) -> Tensor:
        self.fires["input"] += 1
        return gradient * 1.25

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear map."""
        y: Tensor = self.linear(x)
        return y


class GradientHookedLayer(nn.Module):
    """A linear map whose hooks change gradients and count their calls."""

    def __init__(self, width: int, on: Literal["parameters", "module"]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires: Counter[str] = Counter()
        if on == "module":
            self.linear.register_full_backward_pre_hook(self._before)
            self.linear.register_full_backward_hook(self._after)
            return
        for parameter in self.linear.parameters():
            parameter.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: Tensor) -> Tensor:
        self.fires["parameter"] += 1
        return gradient * 1.25

    def _before(self, _module: nn.Module, of_output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.fires["pre_backward"] += 1
        return (of_output[0] * 1.5,)

    def _after(
        self, _module: nn.Module, of_input: tuple[Tensor | None, ...], _of_output: object
    ) -> tuple[Tensor, ...] | None:
        self.fires["backward"] += 1
        return None if of_input[0] is None else (of_input[0] * 1.25,)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear map."""
        y: Tensor = self.linear(x)
        return y
