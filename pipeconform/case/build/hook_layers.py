"""Modules with hooks on gradients: of a stage's inputs, of parameters, and of a module's backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

__all__ = ["GradientHookedLayer", "InputHookedLayer"]


class InputHookedLayer(nn.Module):
    """A linear map that hooks its stage's inputs, each or all `together`; the stage calls `watch` in every forward."""

    def __init__(self, width: int, *, together: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires: Counter[str] = Counter()
        self._together = together

    def watch(self, inputs: Iterable[Any]) -> None:
        """Hook every input that needs a gradient: the tensors as the engine gave them, no views of them."""
        wanted = [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]
        if self._together and wanted:
            register_multi_grad_hook(wanted, self._gradients)
        for value in () if self._together else wanted:
            value.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradients(self, _gradients: Sequence[Tensor | None]) -> None:
        self.fires["joint_input"] += 1

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
