"""Gradients side by side in flat buffers, so that many small reductions become a few large ones.

In the order in which a backward pass reaches the parameters, the first bucket's reduction is under way while the rest
is computed. A bucket holds parameters of one dtype and device; one with sparse gradients has a bucket of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Bucket", "buckets_of"]


class Bucket:
    """Gradients of `parameters` (by name, in order), which are reduced together.

    A communication hook gets this object. Its input is `buffer`, of shape ``[sum of the parameters' sizes]``, or a
    sparse tensor; `dtype` is that of the reduction.
    """

    def __init__(
        self,
        index: int,
        parameters: dict[str, nn.Parameter],
        *,
        dtype: torch.dtype | None,
        sparse: bool,
        is_last: bool,
    ) -> None:
        self.index, self.parameters, self.sparse, self.is_last = index, parameters, sparse, is_last
        self.missing = set(parameters)
        """Parameters whose gradient is not there yet."""
        first = next(iter(parameters.values()))
        total = 0 if sparse else sum(p.numel() for p in parameters.values())
        self.buffer = torch.zeros(total, dtype=dtype or first.dtype, device=first.device)
        self._views = {} if sparse else dict(self._cut())

    def put(self, name: str, *, as_view: bool) -> None:
        """Copy a parameter's gradient to the buffer (zeros if it has none); with `as_view` it lives there."""
        parameter = self.parameters[name]
        if self.sparse:
            gradient = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
            self.buffer = gradient.detach().coalesce()
            return
        view = self._views[name]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr() or not view.numel():
            view.copy_(parameter.grad.detach())
            if as_view and view.dtype == parameter.dtype:
                parameter.grad = view

    def take(self, name: str, reduced: Tensor, *, as_view: bool) -> None:
        """Give a parameter its part of the `reduced` buffer as its gradient."""
        parameter = self.parameters[name]
        if self.sparse:
            parameter.grad = reduced
            return
        view = self._views[name]
        if reduced.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(reduced)
        if as_view and view.dtype == parameter.dtype:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = torch.empty_like(parameter).copy_(view)
        elif parameter.grad.data_ptr() != view.data_ptr():
            with torch.no_grad():
                parameter.grad.copy_(view)

    def _cut(self) -> Iterator[tuple[str, Tensor]]:
        offset = 0
        for name, p in self.parameters.items():
            # the parameter's memory layout, so that a view will do as its gradient
            stride = p.stride() if _is_dense(p) else torch.empty(p.shape, device="meta").stride()
            yield name, self.buffer.as_strided(p.shape, stride, offset)
            offset += p.numel()


def buckets_of(
    parameters: Mapping[str, nn.Parameter],
    *,
    bytes_each: Sequence[float],
    dtype: torch.dtype | None,
    sparse: frozenset[str],
    apart: frozenset[str] = frozenset(),
) -> list[Bucket]:
    """Lay `parameters` out in order; bucket i ends when it has ``bytes_each[i]``, later ones as the last of them.

    Those `apart` share no bucket with others.
    """
    groups: list[dict[str, nn.Parameter]] = []
    before: object = None
    room = 0.0
    for name, parameter in parameters.items():
        kind = (parameter.dtype, parameter.device, name in sparse, name in apart)
        if kind != before or name in sparse or room <= 0:
            room = bytes_each[min(len(groups), len(bytes_each) - 1)]
            groups.append({})
        before, groups[-1][name] = kind, parameter
        room -= parameter.numel() * parameter.element_size()
    last = len(groups) - 1
    return [
        Bucket(i, members, dtype=dtype, sparse=next(iter(members)) in sparse, is_last=i == last)
        for i, members in enumerate(groups)
    ]


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor fills its memory without holes or overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= max(1, size)
    return True
