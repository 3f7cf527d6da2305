"""The pipeline schedules of NVIDIA apex's `apex.transformer` behind the contract.

`get_forward_backward_func` chooses one of three functions: without a pipeline, 1F1B, or interleaved 1F1B. Each takes a
``forward_step_func``, a local batch as a list of tensors, which it cuts into microbatches along their first dimension,
this rank's stages (with ``set_input_tensor``), and the one shape and dtype of everything that crosses. How many
microbatches there are is set for the process.

The engine is made for CUDA. On the CPU the module that sends and receives is given a torch whose calls mean the CPU,
and groups that say they are NCCL's: with others it sends one by one, with NCCL in batches, which is what is judged.
Groups are made once in a process, with the backend of the default group, as the engine documents it; without that it
asks for NCCL (E106). Those of replicas, which it counts in one order only, are the plan's, and their stages are in
torch's wrapper, as its `build_model` has them by default.

Not claimed: keyword arguments and several tensors, since batches are lists of tensors, and messages have one shape; a
first stage without trained parameters, which its backward does not expect; models with an encoder and a decoder.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as tree

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    DataParallelClaim,
    Description,
    Feature,
    MicrobatchRule,
    Mode,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    module_gradients,
    module_state,
    placement_of,
    step_modules,
)
from pipeconform.adapters.installed import has_file
from pipeconform.adapters.one_edge import edge_of
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.adapters.without_cuda import TorchWithoutCuda
from pipeconform.errors import Unsupported

__all__ = ["Apex"]

_REMEDY = (
    "put a checkout of github.com/NVIDIA/apex at tag 25.09 on the import path, the last release that has it"
)
_OF_PIPELINES = ("_PIPELINE_MODEL_PARALLEL_GROUP", "_PIPELINE_GLOBAL_RANKS", "_MODEL_PARALLEL_GROUP")
"""What the engine's functions ask for of a pipeline and its ranks, as its module has them."""
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="1F1B", family="one_f_one_b"),
        ScheduleClaim(
            name="Interleaved1F1B",
            stages_per_rank=(2, 3),
            min_ranks=3,  # "pipeline-model-parallel size should be greater than 2 with interleaved schedule"
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
            family="interleaved_one_f_one_b",
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.MICROBATCH_LOSSES, Feature.EVAL, Feature.EVAL_LOSSES}
        | {Feature.LOSS_KWARGS, Feature.TOKENS, Feature.DECLARED_BOUNDARIES}
        | {Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE, Feature.LOADING}
        | {Feature.LOSS_PARAMETERS, Feature.UNUSED_PARAMETERS, Feature.SHARED_IN_STAGE, Feature.BUFFERS}
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
        | {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}
    ),
    boundary=BoundaryClaim(
        dtypes=("float64", "float32", "bfloat16", "float16"), min_ndim=3, max_ndim=3, differ=False
    ),
    data_parallel=DataParallelClaim(),
    patience=10.0,
)


class _Named:
    """A group that says it is NCCL's: the engine sends in batches then, and one by one otherwise."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def name(self) -> str:
        return "nccl"


class _Groups:
    """``parallel_state`` for the module that sends and receives."""

    def __getattr__(self, name: str) -> Any:
        from apex.transformer import parallel_state

        return getattr(parallel_state, name)

    def get_pipeline_model_parallel_group(self) -> _Named:
        return _Named(self.__getattr__("get_pipeline_model_parallel_group")())

    def get_model_parallel_group(self) -> _Named:
        return _Named(self.__getattr__("get_model_parallel_group")())


class _Messages:
    """``torch.distributed`` for that module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def P2POp(self, *, op: Any, tensor: torch.Tensor, peer: int, group: _Named) -> dist.P2POp:  # noqa: N802 - torch's name
        return dist.P2POp(op=op, tensor=tensor, peer=peer, group=group.group)


class _TorchOnCpu(TorchWithoutCuda):
    """``torch`` for that module, on the CPU."""

    distributed = _Messages()


class _Stage(nn.Module):
    """What the schedules drive: a module that gets its input before its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.received: torch.Tensor | None = None

    def set_input_tensor(self, tensors: list[torch.Tensor | None]) -> None:
        (self.received,) = tensors

    def forward(self, *args: Any) -> Any:
        return self.inner(*(args if self.received is None else (self.received,)))


class _ApexPipeline:
    """One rank's stages, and the process's engine, which is set up for them."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._modules = plan, plan.build_owned()
        self.apply = step_modules(self._modules, plan.optimizer)
        self._stages: list[nn.Module] = [
            self._wrapped(s, _Stage(module)) for s, module in self._modules.items()
        ]
        self._chunks = len(self._stages) if len(self._stages) > 1 else None
        self._edge = edge_of(plan)

    def _wrapped(self, index: int, stage: nn.Module) -> nn.Module:
        """As the engine's `build_model` wraps a stage by default, where there are replicas of it."""
        if self._plan.ranks.num_replicas == 1:
            return stage
        return DistributedDataParallel(stage, process_group=self._plan.ranks.replica_groups[index])

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        from apex.transformer import parallel_state
        from apex.transformer.pipeline_parallel import get_forward_backward_func, utils

        for stage in self._stages:
            stage.train(mode is Mode.TRAIN)
        given, structure = tree.tree_flatten((batch.args, batch.target))
        size = -(-len(given[0]) // batch.num_microbatches)
        utils._reconfigure_microbatch_calculator(
            rank=0,
            rampup_batch_size=None,
            global_batch_size=len(given[0]),
            micro_batch_size=size,
            data_parallel_size=1,
        )
        if utils.get_num_microbatches() != batch.num_microbatches:
            raise ValueError(
                f"{len(given[0])} samples are no {batch.num_microbatches} microbatches of {size}"
            )
        parallel_state.set_virtual_pipeline_model_parallel_world_size(self._chunks)
        parallel_state.set_virtual_pipeline_model_parallel_rank(None if self._chunks is None else 0)
        step = get_forward_backward_func(self._chunks, len(self._plan.ranks.pipeline_ranks))
        reported = step(
            partial(self._forward_step, structure, batch.loss_kwargs),
            given,
            self._stages,
            forward_only=mode is not Mode.TRAIN,
            tensor_shape=self._shape(size),
            dtype=None if self._edge is None else self._edge.dtype,
            disable_autocast=True,  # models are in their dtype already
        )
        if not reported:
            return StepResult()
        return StepResult(
            output=torch.cat([one["output"] for one in reported]), losses=[one["loss"] for one in reported]
        )

    def _shape(self, size: int) -> tuple[int, ...]:
        """The shape of all messages of a step."""
        if self._edge is None:
            return ()
        shape = list(self._edge.shape)
        if self._edge.batch_dim is not None:
            shape[self._edge.batch_dim] = size
        return tuple(shape)

    def _forward_step(
        self, structure: Any, loss_kwargs: Mapping[str, Any], microbatch: list[torch.Tensor], stage: nn.Module
    ) -> tuple[Any, Any]:
        args, target = tree.tree_unflatten(microbatch, structure)

        def loss_of(output: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss = self._plan.loss.function(output, target, **loss_kwargs)
            return loss, {"loss": loss.detach(), "output": output.detach()}

        return stage(*args), loss_of

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        self._stages.clear()


class Apex:
    """Adapter for ``apex.transformer.pipeline_parallel``."""

    def describe(self) -> Description:
        """The schedules' documented features; raises `Unsupported` if apex lacks them, as since January 2026."""
        if not has_file("apex", "transformer", "pipeline_parallel", "p2p_communication.py"):
            raise Unsupported(f"apex.transformer.pipeline_parallel is not installed: {_REMEDY}")
        return Description(
            name="apex",
            version=_release(),
            capabilities=_CAPABILITIES,
            packages=("apex.transformer.pipeline_parallel",),
        )

    def setup_process(self) -> None:
        """Make the engine's groups, of which each pipeline is the whole world."""
        from apex import DeprecatedFeatureWarning
        from apex.transformer import parallel_state

        warnings.filterwarnings("ignore", category=DeprecatedFeatureWarning)
        warnings.filterwarnings("ignore", message="This function is only for unittest")
        parallel_state.new_process_group = _new_group
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size_=dist.get_world_size())
        self._groups = {name: getattr(parallel_state, name) for name in _OF_PIPELINES}

    def build(self, plan: Plan) -> _ApexPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipelines are not the whole world, of which the engine makes its groups.
            ValueError: stages are placed otherwise than the schedules want them, which these do not know.
        """
        require_whole_world(plan.ranks)
        p, stages = len(plan.ranks.pipeline_ranks), len(plan.stages)
        if plan.placement != placement_of(Placement.LOOP, num_ranks=p, num_stages=stages):
            raise ValueError(f"stages are placed on ranks {plan.placement}, but {plan.schedule} wants a loop")
        from apex.transformer import parallel_state
        from apex.transformer.pipeline_parallel import p2p_communication

        on_cpu = plan.ranks.device.type == "cpu"
        p2p_communication.torch = _TorchOnCpu("torch") if on_cpu else torch
        p2p_communication.parallel_state = _Groups() if on_cpu else parallel_state
        groups = self._groups
        if plan.ranks.num_replicas > 1:
            own = (plan.ranks.pipeline_group, plan.ranks.pipeline_ranks, plan.ranks.pipeline_group)
            groups = dict(zip(_OF_PIPELINES, own, strict=True))
        for name, group in groups.items():
            setattr(parallel_state, name, group)
        return _ApexPipeline(plan)


def _new_group(ranks: Any, backend: str | None) -> Any:
    """The engine's own function, where no backend means that of the default group, as the engine documents it."""
    return dist.new_group(ranks, backend=backend)


def _release() -> str:
    """The release as apex's distribution has it, of an installation or a checkout."""
    try:
        return metadata.version("apex")
    except metadata.PackageNotFoundError:
        spec = find_spec("apex")
        setup = Path((spec and spec.origin) or "").parents[1] / "setup.py"
        found = (
            re.search(r'^\s*version="([^"]+)"', setup.read_text(), re.MULTILINE) if setup.is_file() else None
        )
        return found[1] if found else "unknown"
