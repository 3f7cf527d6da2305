"""The plan's part on stages that are cut over ranks, and the tensors that then cross between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from pipeconform.adapter import TensorParallel
from pipeconform.case.case import Case
from pipeconform.case.tensor_parallel import TensorParallel as TensorParallelCase
from pipeconform.case.tensor_parallel import layers_of
from pipeconform.stage_wrapping import axis_of_parts, placed, placement_of_held

__all__ = ["Edges", "edges_of", "tensor_parallel_of"]


def tensor_parallel_of(case: Case) -> TensorParallel | None:
    """The plan's `TensorParallel`; None if every stage is on one rank."""
    tensor = case.world.tensor
    if tensor is None:
        return None
    found = {s: layers_of(tensor, case.model, s) for s in range(case.num_stages)}
    return TensorParallel(
        layers={s: layers for s, layers in found.items() if layers},
        stream=tensor.stream,
        boundary=tensor.boundary or None,
        batch=tensor.batch or None,
    )


class Edges:
    """The edges of stages where `DTensor`s cross or enter: the stages themselves work on whole tensors, on every rank.

    If something arrives that differs from what was handed over, the stage's recorder notes it, and it is repaired
    here, so that later stages are not blamed.
    """

    def __init__(self, mesh: DeviceMesh, tensor: TensorParallelCase, *, width: int, sequence: int) -> None:
        self._mesh = mesh
        self._between = placement_of_held(tensor.boundary) if tensor.boundary else None
        self._outside = placement_of_held(tensor.batch) if tensor.batch else None
        self._tail = (sequence, width) if sequence else (width,)

    def __deepcopy__(self, memo: object) -> Edges:
        """Keep the same mesh when an engine copies its stages."""
        return self

    def arrived(self, x: Tensor, *, first: bool) -> Tensor:
        """The whole of a stage's input, which for the first stage is that of the batch."""
        placement = self._outside if first else self._between
        return x if placement is None else _gathered(self._repaired(x, placement))

    def leaving(self, x: Tensor, *, last: bool) -> Tensor:
        """The part of its whole output that a stage hands over, or that the last stage returns."""
        placement = self._outside if last else self._between
        return x if placement is None else placed(x, self._mesh, placement)

    def loss(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The loss of outputs and targets that are placed."""
        if self._outside is None:
            return function

        def of_whole(output: Tensor, target: Tensor, **others: Any) -> Tensor:
            whole = (
                _gathered(self._whole_samples(one)) if isinstance(one, DTensor) else one
                for one in (output, target)
            )
            return function(*whole, **others)

        return of_whole

    def _whole_samples(self, x: DTensor) -> DTensor:
        """The same parts, with the number of samples that these have together."""
        if not x.placements[0].is_shard(0):
            return x
        part = x.to_local()
        return self._made(part, x.placements[0], (part.shape[0] * self._mesh.size(), *x.shape[1:]))

    def _repaired(self, x: Tensor, placement: Placement) -> DTensor:
        whole = isinstance(x, DTensor) and x.placements[0].is_replicate()
        rows = x.shape[0]
        if placement.is_shard(0) and not whole:
            rows = (x.to_local() if isinstance(x, DTensor) else x).shape[0] * self._mesh.size()
        shape = torch.Size((rows, *self._tail))
        if isinstance(x, DTensor):
            dim = placement.dim % x.ndim if isinstance(placement, Shard) else None
            same = placement.is_replicate() if dim is None else x.placements[0].is_shard(dim)
            if x.device_mesh == self._mesh and x.shape == shape and (same or whole):
                return x
            x = x.to_local()
        return self._made(x, Replicate() if x.shape == shape else placement, shape)

    def _made(self, part: Tensor, placement: Placement, shape: Sequence[int]) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        made: DTensor = DTensor.from_local(
            part, self._mesh, [placement], run_check=False, shape=torch.Size(shape), stride=stride
        )
        return made


def _gathered(x: DTensor) -> Tensor:
    whole: Tensor = x.redistribute(placements=[Replicate()]).to_local()
    return whole


def edges_of(case: Case, mesh: DeviceMesh | None) -> Edges | None:
    """The edges of the case's stages on one rank; None if plain tensors cross and enter."""
    tensor = case.world.tensor
    if tensor is None or not (tensor.boundary or tensor.batch) or mesh is None:
        return None
    return Edges(axis_of_parts(mesh), tensor, width=case.model.width, sequence=case.model.sequence)
