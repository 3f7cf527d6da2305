"""The plan's part on stages that are cut over ranks, and the tensors that then cross between stages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from pipeconform.adapter import Held, TensorParallel
from pipeconform.case.case import Case
from pipeconform.case.tensor_parallel import layers_of
from pipeconform.stage_wrapping import placement_of_held

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
    )


class Edges:
    """A stage's edges where `DTensor`s cross: the stage itself works on whole tensors, on every rank.

    If something arrives that differs from what was handed over, the stage's recorder notes it, and it is repaired
    here, so that later stages are not blamed.
    """

    def __init__(self, mesh: DeviceMesh, held: Held, *, width: int, sequence: int) -> None:
        self._mesh, self._placement = mesh, placement_of_held(held)
        self._tail = (sequence, width) if sequence else (width,)

    def __deepcopy__(self, memo: object) -> Edges:
        """Keep the same mesh when an engine copies its stages."""
        return self

    def arrived(self, x: Tensor) -> Tensor:
        """The whole of a stage's input."""
        whole: Tensor = self._repaired(x).redistribute(placements=[Replicate()]).to_local()
        return whole

    def leaving(self, x: Tensor) -> DTensor:
        """The part of its whole output that a stage hands over."""
        made: DTensor = DTensor.from_local(x, self._mesh, [Replicate()], run_check=False)
        handed: DTensor = made.redistribute(placements=[self._placement])
        return handed

    def _repaired(self, x: Tensor) -> DTensor:
        placement = self._placement
        shape = torch.Size((x.shape[0], *self._tail))
        if isinstance(x, DTensor):
            dim = placement.dim % x.ndim if placement.is_shard() else None
            same = placement.is_replicate() if dim is None else x.placements[0].is_shard(dim)
            if x.device_mesh == self._mesh and x.shape == shape and (same or x.placements[0].is_replicate()):
                return x
            x = x.to_local()
        if x.shape == shape:
            placement = Replicate()
        stride = torch.empty(shape, device="meta").stride()
        made: DTensor = DTensor.from_local(
            x, self._mesh, [placement], run_check=False, shape=shape, stride=stride
        )
        return made


def edges_of(case: Case, mesh: DeviceMesh | None) -> Edges | None:
    """The edges of the case's stages on one rank; None if plain tensors cross."""
    tensor = case.world.tensor
    if tensor is None or not tensor.boundary or mesh is None:
        return None
    assert mesh.mesh_dim_names is not None
    return Edges(
        mesh[mesh.mesh_dim_names[-1]],
        tensor.boundary,
        width=case.model.width,
        sequence=case.model.sequence,
    )
