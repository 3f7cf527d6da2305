"""Faults of replicas: accumulation over steps, options of wrappers, lateness, shards."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeconform.adapter import Batch, Mode, StepResult
from pipeconform.stage_wrapping import wrapped

from ..adapter import ReferencePipeline
from ..front_end import Ties
from ..runtime import Step, Work
from .fault import breaks
from .replicas import gradients_of

# ----------------------------------------------------- DPC-4: accumulation and the wrapper's options


@breaks("DPC-4", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class EarlierForgotten(ReferencePipeline):
    """If a stage has replicas, the gradients of earlier steps are lost."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        for replicas in self.replicas.values():
            replicas.module.zero_grad()
        return super().run(mode, batch)


class _EarlierStep(Step):
    def _average(self, s: int) -> None:
        super()._average(s)
        for p in self.replicas[s].module.parameters():
            earlier: Tensor | None = self.earlier.get(p)
            if p.grad is not None and earlier is not None:
                p.grad.add_(earlier)

    earlier: dict[nn.Parameter, Tensor]


@breaks("DPC-4", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class EarlierAddedAgain(ReferencePipeline):
    """Gradients of earlier steps are added once more after the reduction."""

    step_type = _EarlierStep

    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        assert isinstance(step, _EarlierStep)
        modules = [replicas.module for replicas in self.replicas.values()]
        kept = [p for module in modules for p in module.parameters()]
        step.earlier = {p: p.grad.clone() for p in kept if p.grad is not None}
        return step


@breaks("DPC-4", tells=r"the communication hook of stage \d was given none of \d+ gradient values")
class HookLeftOut(ReferencePipeline):
    """The user's communication hook is not registered."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        how = self.plan.data_parallel
        plan = self.plan if how is None else dataclasses.replace(self.plan, data_parallel=_unhooked(how))
        return wrapped(plan, index, module)


def _unhooked(how: Any) -> Any:
    return dataclasses.replace(how, hook=None)


# ------------------------------------------------------------- DPC-5: tied weights in replicas


@breaks("DPC-5", tells=r"the tied weight is not the same everywhere: rank \d, stage \d has")
class TiedInOneReplica(ReferencePipeline):
    """Only the first replica adds up the gradients of a weight that stages share."""

    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return super().make_ties(shared if self.plan.ranks.replica == 0 else ())


@breaks("DPC-5", tells=r"the gradient of tied in stage \d is not the reference's")
class TiedSumOfAll(ReferencePipeline):
    """Gradients of a weight that stages share are added up over the replicas once more."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        done = super().run(mode, batch)
        for s, module in self.modules.items():
            gradient = module.get_parameter("tied").grad if self._is_tied(s) else None
            if gradient is not None and mode is Mode.TRAIN:
                dist.all_reduce(gradient, group=self.plan.ranks.replica_groups[s])
        return done

    def _is_tied(self, s: int) -> bool:
        return any(s in where for where in self.plan.tied)


# ------------------------------------------------------------- DPC-11: mixed precision of shards


@breaks("DPC-11", tells=r"the output|the loss|the gradient of blocks\.\d\.[\w.]+ in stage \d is not")
class PolicyLeftOut(ReferencePipeline):
    """Stages are sharded without the policy of mixed precision: they compute in float32."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        how = self.plan.data_parallel
        if how is None:
            return super().make_replicated(index, module)
        whole = dataclasses.replace(how, mixed_precision=False)
        return wrapped(dataclasses.replace(self.plan, data_parallel=whole), index, module)


@breaks("DPC-11", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class ShardsReducedIn16Bits(ReferencePipeline):
    """Gradients of shards in mixed precision are added up and reduced in the dtype in which they were computed."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        how = self.plan.data_parallel
        if how is None or not how.mixed_precision:
            return super().make_replicated(index, module)
        group = self.plan.ranks.replica_groups[index]
        name = f"narrow_{group.group_name}"
        mesh = DeviceMesh.from_group(group, self.plan.ranks.device.type, mesh_dim_names=(name,))
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        return module


class _OwnSums(Step):
    def backward_weight(self, s: int, k: int) -> None:
        self.stages[s].backward_weight(k)


@breaks(
    "DPC-11", schedule="ZB-H1", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's"
)
class WeightPartsAddedUpIn16Bits(ReferencePipeline):
    """The wrapper is not told of weight parts: what they compute is added up in the dtype of the computation."""

    step_type = _OwnSums


# ------------------------------------------------------------------------ DPC-6: late replicas


# a machine that is busy delays plain reductions as long
@breaks("DPC-6", also=("DPC-1",), tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not")
class Impatient(Step):
    """What a reduction has delivered after four milliseconds is taken for its result."""

    def _average(self, s: int) -> None:
        gradients = gradients_of(self, s)
        if any(isinstance(gradient, DTensor) for gradient in gradients) or not gradients:
            super()._average(s)
            return
        group, ends = self.replicas[s].groups[0], time.monotonic() + 0.004
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) / group.size()
        work = dist.all_reduce(flat, group=group, async_op=True)
        while not work.is_completed() and time.monotonic() < ends:
            time.sleep(0.0002)
        parts = torch.split(flat.clone(), [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        work.wait()


@breaks(
    "DPC-6", also=("DPC-1",), tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's"
)
class LateReplicaLeftOut(Step):
    """A replica that comes four milliseconds after the first one contributes zeros."""

    def _average(self, s: int) -> None:
        gradients, group = gradients_of(self, s), self.replicas[s].groups[0]
        now = torch.tensor(time.monotonic(), dtype=torch.float64, device=self.link.device)
        first = now.clone()
        dist.all_reduce(first, op=dist.ReduceOp.MIN, group=group)
        if float(now - first) > 0.004:
            for gradient in gradients:
                gradient.zero_()
        super()._average(s)


# ------------------------------------------------------------------------------- DPC-8: shards


@breaks(
    "DPC-8", tells=r"(?s)the parameter of blocks\.\d\.[\w.]+ in stage \d is not .*missing", also=("LIF-4",)
)
class PrefixedNames(ReferencePipeline):
    """Names in the state have a wrapper's prefix."""

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        found = super().state()
        return {s: {f"module.{name}": value for name, value in own.items()} for s, own in found.items()}


@breaks("DPC-8", tells=r"is S\(0\) of \[.*\] on rank \d, its gradient whole", also=("DPC-7",))
class WholeGradients(ReferencePipeline):
    """Parameters are sharded, gradients are not."""

    def gradients(self) -> Mapping[int, Mapping[str, Tensor | None]]:
        found = super().gradients()
        return {s: {name: _whole(value) for name, value in own.items()} for s, own in found.items()}


def _whole(value: Tensor | None) -> Tensor | None:
    return value.full_tensor() if isinstance(value, DTensor) else value


@breaks(
    "DPC-8", tells=r"the parameter of blocks\.\d\.[\w.]+ in stage \d is not the reference's", also=("DPC-1",)
)
class NeighboursShards(ReferencePipeline):
    """A rank returns its neighbour's shards as its own."""

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        found = super().state()
        return {s: {name: _neighbours(value) for name, value in own.items()} for s, own in found.items()}


def _neighbours(value: Tensor) -> Tensor:
    if not isinstance(value, DTensor):
        return value
    whole, mesh = value.full_tensor(), value.device_mesh
    parts = list(whole.chunk(mesh.size()))
    parts += [whole[:0]] * (mesh.size() - len(parts))
    part = parts[(mesh.get_local_rank() + 1) % mesh.size()]
    return DTensor.from_local(
        part, mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
    )
