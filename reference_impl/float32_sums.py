"""Gradients of 16-bit parameters, added up in float32 over microbatches, steps and replicas.

A gradient is taken from its parameter as soon as a backward has computed it, and added to the parameter's sum. Replicas
average the sums: wrappers know the gradients of parameters only, which have the parameters' dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .replicas import Replicas

__all__ = ["Float32Replicas", "Float32Sums"]


class Float32Sums:
    """The sums of the gradients of some parameters, each once."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def of(self, parameter: Tensor) -> Tensor | None:
        """The sum, in float32; None if there was no gradient since the sums were cleared."""
        return self._sums.get(parameter)

    def by_stage(self, modules: Mapping[int, nn.Module]) -> dict[int, dict[str, Tensor | None]]:
        """The sums by stage and name."""
        return {s: {n: self.of(p) for n, p in module.named_parameters()} for s, module in modules.items()}

    def clear(self, *, set_to_none: bool) -> None:
        """Forget the sums, or set those that there are to zero."""
        if set_to_none:
            self._sums.clear()
        for total in self._sums.values():
            total.zero_()

    def fill(self, parameter: Tensor) -> None:
        """Begin a sum with zeros, if there is none."""
        self._sums.setdefault(parameter, torch.zeros_like(parameter, dtype=torch.float32))

    @torch.no_grad()
    def average(self, parameter: Tensor, groups: Sequence[dist.ProcessGroup]) -> None:
        """Replace a sum by its mean over the ranks of the groups."""
        for group in groups:
            self.reduce(self._sums[parameter], group)

    def reduce(self, total: Tensor, group: dist.ProcessGroup) -> None:
        """Replace a sum by its mean over the ranks of a group."""
        dist.all_reduce(total, group=group)
        total.div_(group.size())

    def added(self, total: Tensor | None, gradient: Tensor) -> Tensor:
        """The sum with one more gradient."""
        return gradient.float() if total is None else total + gradient

    @torch.no_grad()
    def _take(self, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None:
            self._sums[parameter] = self.added(self.of(parameter), gradient)


class Float32Replicas(Replicas):
    """Replicas that average sums in the place of gradients."""

    def __init__(self, inner: Replicas, sums: Float32Sums) -> None:
        super().__init__(inner.module, inner.groups)
        self._inner, self._sums = inner, sums

    def step(self) -> AbstractContextManager[None]:
        """What the replicas do around a step without sums."""
        return self._inner.step()

    def fill(self, parameter: Tensor) -> None:
        """Give a parameter that only other replicas used a sum of zeros."""
        self._sums.fill(parameter)

    def has_gradient(self, parameter: Tensor) -> bool:
        """Whether this replica has a sum of it."""
        return self._sums.of(parameter) is not None

    def _average(self, used: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
        for parameter in used:
            self._sums.average(parameter, self.groups)
