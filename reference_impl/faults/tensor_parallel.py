"""Faults of stages that are cut over ranks, and of tensors between stages that are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pipeconform.adapter import Batch, Mode, StepResult
from pipeconform.stage_wrapping import wrapped

from ..adapter import ReferencePipeline
from ..runtime import Work
from ..stage import Stage
from .fault import breaks

Named = Mapping[int, Mapping[str, Tensor | None]]


def _changed(values: Named, change: Callable[[DTensor], Tensor]) -> Named:
    return {
        s: {name: change(value) if isinstance(value, DTensor) else value for name, value in own.items()}
        for s, own in values.items()
    }


def _parts(mesh: DeviceMesh) -> ProcessGroup:
    """The ranks that have the parts of this rank's stages."""
    return mesh.get_group(mesh.ndim - 1)


def _from_the_next(part: Tensor, group: ProcessGroup) -> Tensor:
    """The value that the next rank of a group has; all parts have the same shape."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts[(dist.get_rank(group) + 1) % len(parts)]


# ------------------------------------------------------------------- DPC-7: stages that are cut


@breaks(
    "DPC-7",
    tells=r"parameter blocks\.\d\.[\w.]+ of stage \d is .* on rank \d, its gradient a plain tensor",
    also=("DPC-1",),
)
class LocalPartsAsWholes(ReferencePipeline):
    """Gradients are returned as plain tensors: nothing says that they are parts."""

    def gradients(self) -> Named:
        return _changed(super().gradients(), lambda gradient: gradient.to_local())


@breaks("DPC-7", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class PartialTakenForWhole(ReferencePipeline):
    """Every rank's contribution to a gradient is taken for the gradient; contributions are never added up."""

    def gradients(self) -> Named:
        def taken(gradient: DTensor) -> Tensor:
            if not any(one.is_partial() for one in gradient.placements):
                return gradient
            whole = [Replicate()] * gradient.device_mesh.ndim
            found: Tensor = DTensor.from_local(gradient.to_local(), gradient.device_mesh, whole)
            return found

        return _changed(super().gradients(), taken)


@breaks("DPC-7", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class AveragedOverParts(ReferencePipeline):
    """The ranks that have a stage's parts are taken for replicas: their gradients are averaged."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        mesh = self.plan.ranks.mesh
        for module in self.modules.values() if mesh is not None and mode is Mode.TRAIN else ():
            for parameter in module.parameters():
                if isinstance(parameter.grad, DTensor) and mesh is not None:
                    part = parameter.grad.to_local()
                    dist.all_reduce(part, group=_parts(mesh))
                    part.div_(dist.get_world_size(_parts(mesh)))
        return result


@breaks(
    "DPC-7",
    tells=r"the (output of microbatch \d|gradient of [\w.]+ in stage \d) is not the reference's",
    also=("FWD-19",),
)
class OtherDataOnEveryPart(ReferencePipeline):
    """Every part of a stage works on another microbatch, as replicas would."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work, t = super().make_work(mode, batch), self.plan.ranks.tensor_rank

        def rolled(values: Sequence[Any]) -> list[Any]:
            return [*values[t:], *values[:t]]

        return dataclasses.replace(work, inputs=rolled(work.inputs), targets=rolled(work.targets))


@breaks(
    "DPC-7",
    tells=r"(?s)the (output of microbatch \d|(gradient|parameter) of [\w.]+ in stage \d) is not the reference's",
)
class PartsOfTheNeighbour(ReferencePipeline):
    """Every rank has the part of the next one: the layers of a block still fit together."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        made, mesh = super().make_replicated(index, module), self.plan.ranks.mesh
        for parameter in made.parameters() if mesh is not None else ():
            if isinstance(parameter, DTensor) and parameter.placements[-1].is_shard() and mesh is not None:
                with torch.no_grad():
                    part = parameter.to_local()
                    part.copy_(_from_the_next(part, _parts(mesh)))
        return made


@breaks("DPC-7", tells=r"parameter blocks\.\d\.[\w.]+ of stage \d is a plain tensor on rank \d")
class NotCut(ReferencePipeline):
    """Every rank has the whole of its stages."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        return wrapped(dataclasses.replace(self.plan, tensor_parallel=None), index, module)


@breaks(
    "DPC-7", tells=r"parameter blocks\.\d\.[\w.]+ of stage \d is .*, which has part \d of 2; the plan cuts it"
)
class AxesExchanged(ReferencePipeline):
    """Stages are cut over the replicas, and their gradients are averaged over the parts."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        ranks = self.plan.ranks
        if ranks.mesh is None or ranks.mesh.ndim == 1:
            return super().make_replicated(index, module)
        names = tuple(f"turned_{name}" for name in ranks.mesh.mesh_dim_names or ())
        turned = DeviceMesh.from_group(
            list(reversed(ranks.mesh.get_all_groups())),
            ranks.device.type,
            mesh=ranks.mesh.mesh.T.contiguous(),
            mesh_dim_names=names,
        )
        plan = dataclasses.replace(self.plan, ranks=dataclasses.replace(ranks, mesh=turned))
        return wrapped(plan, index, module)


# ------------------------------------------------------------- FWD-19: tensors that cross, cut


class _TakenOtherwise(ReferencePipeline):
    """Stages get something other than what was handed on."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        def given(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(self.taken(arg) if isinstance(arg, DTensor) else arg for arg in args)

        module.register_forward_pre_hook(given)
        return super().make_stage(index, module)

    def taken(self, value: DTensor) -> Tensor:
        raise NotImplementedError


@breaks(
    "FWD-19",
    tells="the input of stage 1 is a plain tensor .* handed over as a DTensor placed",
)
class PlacementLost(_TakenOtherwise):
    """A stage gets the part that was sent, as a plain tensor."""

    def taken(self, value: DTensor) -> Tensor:
        part: Tensor = value.to_local()
        return part


@breaks(
    "FWD-19",
    tells=r"the input of stage 1 is a DTensor placed R .* handed over as a DTensor placed S\(\d\)",
)
class PartAsWhole(_TakenOtherwise):
    """A stage gets the part that was sent as if every rank had been sent the same."""

    def taken(self, value: DTensor) -> Tensor:
        made: Tensor = DTensor.from_local(value.to_local(), value.device_mesh, [Replicate()])
        return made


@breaks(
    "FWD-19",
    tells=r"the input of stage 1 is a DTensor placed R .* handed over as a DTensor placed S\(\d\)",
)
class GatheredOnTheWay(_TakenOtherwise):
    """A stage gets the whole tensor on every rank: right values, but more memory than planned."""

    def taken(self, value: DTensor) -> Tensor:
        return value.redistribute(placements=[Replicate()])


@breaks("FWD-19", tells=r"input 0 of stage 1 \(microbatch \d\) did not arrive unchanged")
class PartsExchanged(_TakenOtherwise):
    """Each of a stage's ranks gets the part of the next one."""

    def taken(self, value: DTensor) -> Tensor:
        (placement,), num = value.placements, value.device_mesh.size()
        if not isinstance(placement, Shard) or value.shape[placement.dim] % num:
            return value
        part: Tensor = value.to_local()
        other = _from_the_next(part.detach(), value.device_mesh.get_group())
        made: Tensor = DTensor.from_local(
            part + (other - part.detach()), value.device_mesh, value.placements, run_check=False
        )
        return made
