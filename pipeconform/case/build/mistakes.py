"""Makes the mistakes of a case: in a batch, in a loss function, or with hooks on stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.adapter import Batch
from pipeconform.case.build import data
from pipeconform.case.case import Case, Step, Train
from pipeconform.case.mistakes import How, Mistake

__all__ = ["DeliberateError", "MistakeMaker", "changed", "mistaken_batch"]

_DOWN = {torch.float64: torch.float32, torch.float32: torch.bfloat16}
_UP = {torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32}


class DeliberateError(Exception):
    """A stage, a loss or a communication hook raised on purpose; the message names no place, so engines must."""

    def __init__(self) -> None:
        super().__init__("raised on purpose")


def changed(value: Tensor, how: How, *, batch_dim: int = 0) -> Any:
    """The replacement of a tensor for the mistake `how`; see `Mistake`."""
    match how:
        case "inner":
            return torch.cat([value, value[..., :1]], dim=-1)
        case "ndim":
            return value.unsqueeze(-2)
        case "flattened":
            return value.flatten(1) if value.ndim > 2 else value.flatten()
        case "batch":
            one = value.narrow(batch_dim, 0, 1)
            return torch.cat([value, one], dim=batch_dim)
        case "down":
            return value.to(_DOWN.get(value.dtype, torch.float16))
        case "up":
            return value.to(_UP.get(value.dtype, torch.float64))
        case "integer":
            return (value.detach() * 8).to(torch.int64)
        case "complex":
            real = value if value.dtype is torch.float64 else value.float()
            return torch.complex(real, torch.zeros_like(real))
        case "none":
            return None
        case "object":
            return "no tensor"
        case "mapping":
            return {"output": value}
    raise AssertionError(f"{how} does not change a single tensor")


class MistakeMaker:
    """The mistakes of one case in one process: the steps in which they are made, and hooks on the stages.

    Forward hooks make the mistakes of a stage. `attach` registers early hooks before the pipeline is built; `during`
    registers all others right before their step. No hook has an effect in other steps.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._now: Mistake | None = None
        self._calls: dict[int, int] = {}

    def attach(self, stage: int, module: nn.Module) -> None:
        """Register the early hooks of a stage; call it before the pipeline is built."""
        if any(one.early and one.stage == stage for one in self._on_stages()):
            module.register_forward_hook(self._hook(stage))

    @contextmanager
    def during(self, step: Step, stages: Mapping[int, nn.Module]) -> Iterator[None]:
        """Surround one step of the program; `stages` are this process's modules in use."""
        mistake = step.mistake if isinstance(step, Train) else None
        late = mistake is not None and not mistake.early and mistake in self._on_stages()
        handles = [
            module.register_forward_hook(self._hook(s))
            for s, module in stages.items()
            if mistake is not None and late and mistake.stage == s
        ]
        self._now, self._calls = mistake, {}
        try:
            yield
        finally:
            self._now = None
            for handle in handles:
                handle.remove()

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The loss function, made to raise where the case says so."""
        if not any(step.mistake is not None and step.mistake.where == "loss" for step in self._case.trains):
            return function

        def loss(*args: Any, **kwargs: Any) -> Tensor:
            if self._now is not None and self._now.where == "loss" and self._is_due(-1):
                raise DeliberateError
            return function(*args, **kwargs)

        return loss

    def reduction(self, stage: int) -> None:
        """Raise if the case says so; a communication hook calls this before it reduces gradients of `stage`."""
        if self._now is not None and self._now.where == "reduction" and self._now.stage == stage:
            raise DeliberateError

    def _on_stages(self) -> tuple[Mistake, ...]:
        made = (step.mistake for step in self._case.trains if step.mistake is not None)
        return tuple(one for one in made if one.where in ("output", "gradient", "forward", "backward"))

    def _is_due(self, place: int) -> bool:
        """Whether the mistake is about the microbatch that now reaches a stage (-1: the loss)."""
        number = self._calls.get(place, 0)
        self._calls[place] = number + 1
        return self._now is not None and self._now.microbatch in (None, number)

    def _hook(self, stage: int) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            mistake = self._now
            if mistake is None or mistake.stage != stage or not self._is_due(stage):
                return None
            return _made(mistake, output, batch_dim=self._case.model.batch_dim)

        return hook


def _made(mistake: Mistake, output: Any, *, batch_dim: int) -> Any:
    """A stage's output with the mistake; None leaves it unchanged."""
    if mistake.where == "forward":
        raise DeliberateError
    if mistake.where == "output":
        return _output(mistake.how, output, batch_dim=batch_dim)
    main = _leaves(output)[0]
    if main.requires_grad:
        main.register_hook(_backward(mistake))
    return None


def _backward(mistake: Mistake) -> Callable[[Tensor], Tensor]:
    def hook(gradient: Tensor) -> Tensor:
        if mistake.where == "backward":
            raise DeliberateError
        found = changed(gradient, mistake.how)
        assert isinstance(found, Tensor)
        return found

    return hook


def _output(how: How, output: Any, *, batch_dim: int) -> Any:
    values = _leaves(output)
    if how == "more":
        found = [*values, values[0] * 1.0]
    elif how == "fewer":
        found = values[:-1]
    else:
        found = [changed(values[0], how, batch_dim=batch_dim), *values[1:]]
        if not isinstance(output, tuple | list):
            # a hook that returns None changes nothing, so None is returned in a tuple
            return (None,) if found[0] is None else found[0]
    return found if isinstance(output, list) else tuple(found)


def _leaves(output: Any) -> list[Any]:
    return list(output) if isinstance(output, tuple | list) else [output]


def mistaken_batch(batch: Batch, mistake: Mistake) -> Batch:
    """The batch with the mistake in its first argument, or in its number of samples.

    If a source ends, the batch has fewer microbatches than it says.
    """
    if mistake.where == "source":
        return replace(batch, microbatches=batch.microbatches[: mistake.microbatch])
    args, target = batch.args, batch.target
    if mistake.where == "input":
        first = args[0]
        if mistake.how == "more":
            args = (*args, first.detach() * 1.0)
        elif mistake.how == "fewer":
            args = args[:-1]
        else:
            made = changed(first.detach(), mistake.how, batch_dim=batch.batch_dim)
            args = (made, *args[1:])
    elif mistake.how == "scarce":
        args = tuple(arg.narrow(batch.batch_dim, 0, 1) for arg in args)
        target = target.narrow(batch.batch_dim, 0, 1)
    elif mistake.how == "targets":
        size = target.shape[batch.batch_dim]
        target = target.narrow(batch.batch_dim, 0, size - 1)
    elif mistake.how == "ragged":
        longer = changed(args[1].detach(), "batch", batch_dim=batch.batch_dim)
        args = (args[0], longer.requires_grad_(args[1].requires_grad), *args[2:])
    else:
        return batch
    return data.reassembled(batch, args=args, target=target)
