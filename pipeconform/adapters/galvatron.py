"""Hetu-Galvatron's pipeline behind the contract.

`PipelineParallel` is given the layers of the whole model, the pipeline rank of each, and the shapes of what a layer
hands on, in which -1 stands for the samples of a microbatch. It cuts a batch with ``torch.chunk``, divides the loss by
the number of microbatches, and gives keyword arguments to every layer of a rank. Losses and outputs are seen by the
loss function only. Its wrapper for data parallelism, FSDP, is left out: there is one replica.

The engine runs on CUDA devices. On the CPU its calls about them mean the CPU, and packages of CUDA kernels, which it
imports and the pipeline does not use, have stand-ins.

Not claimed: saving. The engine has a function for it for each of its models, which finds FSDP around that model's own
layers and writes nothing of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from pipeconform.adapter import (
    Batch,
    Boundary,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    Mode,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.stand_ins import stand_in_for
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.adapters.without_cuda import TorchWithoutCuda

__all__ = ["Galvatron"]

_REMEDY = "pip install --no-deps hetu-galvatron, and what it then lacks"
_KERNELS = ("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C")
_GPIPE, _ONE_F_ONE_B = "GPipe", "1F1B"
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name=_GPIPE, family="gpipe", min_ranks=2),
        ScheduleClaim(name=_ONE_F_ONE_B, family="one_f_one_b", min_ranks=2),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.MICROBATCH_LOSSES, Feature.EVAL, Feature.EVAL_LOSSES, Feature.TOKENS}
        | {
            Feature.KWARGS,
            Feature.OBJECTS,
            Feature.ACCUMULATION,
            Feature.OPTIMIZER,
            Feature.STATE,
            Feature.LOADING,
        }
        | {Feature.SHARED_IN_STAGE, Feature.UNUSED_PARAMETERS, Feature.LOSS_PARAMETERS, Feature.BUFFERS}
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
        | {Feature.RECOMPUTATION, Feature.VARYING_SHAPES}
    ),
    boundary=BoundaryClaim(
        max_tensors=4,
        containers=("tensor", "tuple"),
        dtypes=("float32", "bfloat16", "float16"),
        non_float_tensors=True,
    ),
)


class _Moved:
    """A new tensor, which ``cuda`` returns as it is: the engine makes zeros and then moves them to its device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def cuda(self, _: int) -> torch.Tensor:
        return self._tensor


class _TorchWithoutCuda(TorchWithoutCuda):
    """``torch`` for the engine's pipeline on the CPU."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None, device_count=lambda: 1)

    def zeros(self, *size: Any, **options: Any) -> Any:
        """``torch.zeros``, to be followed by ``cuda``."""
        return _Moved(torch.zeros(*size, **options))


class _GalvatronPipeline:
    """One rank's stage in the engine's pipeline."""

    def __init__(self, plan: Plan) -> None:
        from galvatron.core.runtime.pipeline import PipelineParallel, PipeSequential, pipeline

        on_cpu = plan.ranks.device.type == "cpu"
        pipeline.torch = _TorchWithoutCuda("torch") if on_cpu else torch
        self._loss, self._schedule, self._modules = plan.loss, plan.schedule, plan.build_owned()
        self.apply = step_modules(self._modules, plan.optimizer)
        self._is_last = len(plan.stages) - 1 in self._modules
        layers = [self._modules.get(s, nn.Identity()) for s in range(len(plan.stages))]
        shapes = [_shapes(boundary) for boundary in plan.boundaries()]
        self._engine = PipelineParallel(
            model=PipeSequential(*layers),
            model_ranks=[min(owners) for owners in plan.placement],
            layer_output_tensor_shapes=[*shapes, None],
            layer_output_tensor_dtypes=[*([t.dtype for t in b.tensors] for b in plan.boundaries()), None],
            chunks=plan.num_microbatches,
            process_group=list(plan.ranks.pipeline_ranks),
        )
        if plan.recompute:
            self._engine.wrap_pipeline_modules_checkpoint([1] * len(layers))

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        trains = mode is Mode.TRAIN
        for module in self._modules.values():
            module.train(trains)
        given = [list(batch.args), [batch.target]]
        kwargs = {name: value for s in self._modules for name, value in batch.kwargs.get(s, {}).items()}
        with nullcontext() if trains else torch.no_grad():
            if self._schedule == _GPIPE:
                found = self._engine.gpipe_forward(given, self._loss_func, forward_only=not trains, **kwargs)
                if trains:
                    self._engine.gpipe_backward()
            else:
                found = self._engine.pipedream_flush_forward_backward(
                    given, self._loss_func, forward_only=not trains, **kwargs
                )
        if not self._is_last:
            return StepResult()
        losses, outputs = zip(*found, strict=True)
        return StepResult(output=torch.cat(outputs), losses=losses)

    def _loss_func(self, targets: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Any:
        """The loss, and what the engine keeps of the microbatch for its caller."""
        (target,), (output,) = targets, outputs
        loss = self._loss.function(output, target)
        return loss, (loss.detach(), output.detach())

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        """Destroy the group that the engine made."""
        if self._engine is not None:
            torch.distributed.destroy_process_group(self._engine.group)
        self._engine = None


class Galvatron:
    """Adapter for ``galvatron.core.runtime.pipeline``."""

    def describe(self) -> Description:
        """What the engine documents; raises `Unsupported` if it is not installed."""
        return Description(
            name="hetu-galvatron",
            version=require_release("hetu-galvatron", at_least=(2, 4), remedy=_REMEDY),
            capabilities=_CAPABILITIES,
            packages=("galvatron.core.runtime.pipeline",),
        )

    def setup_process(self) -> None:
        """Import the engine, without the kernels that it does not use here, and set the arguments that it asks for."""
        stand_in_for(*_KERNELS)
        import_module("galvatron.core.runtime.pipeline")
        arguments = SimpleNamespace(sequence_parallel=False, shape_order="BSH", async_grad_reduce=True)
        import_module("megatron.training.global_vars").set_args(arguments)

    def build(self, plan: Plan) -> _GalvatronPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world; every rank makes the group of its pipeline.
        """
        require_whole_world(plan.ranks)
        return _GalvatronPipeline(plan)


def _shapes(boundary: Boundary) -> list[list[int]]:
    """The shapes of the tensors at a boundary as the engine has them, with -1 for the samples."""
    return [
        [-1 if axis == one.batch_dim else size for axis, size in enumerate(one.shape)]
        for one in boundary.tensors
    ]
