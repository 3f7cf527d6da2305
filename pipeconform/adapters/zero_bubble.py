"""The pipeline runtime of sail-sg's zero-bubble-pipeline-parallelism, a fork of Megatron-LM, behind the contract.

The runtime carries out a list of computations and messages per rank, which one of its schedulers makes once per
training. It is called as Megatron's schedules are, with this rank's stages (with ``set_input_tensor``), an iterator
over microbatches for each, and a ``forward_step_func``; what it hands on to that function is the loader of its script
``pretrain_gpt``. All messages have one shape, which is given for every step, and one dtype.

Weight gradients are computed later than those of inputs where a module leaves them to the engine's store. Its own
linear layers do, by a CUDA kernel, and so do here modules with a deferred-weight builder; others have their whole
backward at once.

The runtime is made for CUDA. On the CPU its calls about CUDA mean the CPU, and it drops the handles of its messages,
which gloo asks for, so that they are kept here until the end of the step. Before its first step it sends messages that
make NCCL's communicators and measure their time. These are left out without NCCL: see finding E88.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as tree

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    Microbatch,
    Mode,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    TensorSpec,
    module_gradients,
    module_state,
    placement_of,
    step_modules,
)
from pipeconform.adapters.installed import has_file
from pipeconform.adapters.one_edge import edge_of
from pipeconform.adapters.stand_ins import stand_in_for
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.adapters.without_cuda import TorchWithoutCuda
from pipeconform.errors import Unsupported

__all__ = ["ZeroBubble"]

_REMEDY = "put a checkout of github.com/sail-sg/zero-bubble-pipeline-parallelism on the import path"
_KERNELS = (
    "apex",
    "apex.multi_tensor_apply",
    "apex.optimizers",
    "amp_C",
    "flash_attn",
    "flash_attn.flash_attn_interface",
    "fused_weight_gradient_mlp_cuda",
    "pynvml",
)
"""What the engine's models and optimizers import."""
_RUNTIME = "megatron.core.pipeline_parallel.zerobubble.runtime"
_V = partial(ScheduleClaim, placement=Placement.V, stages_per_rank=(2,), min_ranks=2, takes_placement=False)
_SPLIT_V = partial(_V, split_backward=True, split_weights="deferred")
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="1F1B", family="one_f_one_b", min_ranks=2),
        ScheduleClaim(name="Interleaved1F1B", stages_per_rank=(2, 3), min_ranks=2),
        _V(name="1F1BV"),
        ScheduleClaim(name="ZB1P", min_ranks=2, split_backward=True, split_weights="deferred"),
        ScheduleClaim(name="ZB2P", min_ranks=2, split_backward=True, split_weights="deferred"),
        _SPLIT_V(name="ZBV"),
        _SPLIT_V(name="VHalf"),
        _SPLIT_V(name="VMin"),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS, Feature.MICROBATCH_LOSSES}
        | {Feature.EVAL, Feature.EVAL_LOSSES, Feature.KWARGS, Feature.OBJECTS, Feature.LOSS_KWARGS}
        | {Feature.TOKENS, Feature.BATCH_DIM, Feature.BATCH_SOURCES, Feature.DECLARED_BOUNDARIES}
        | {Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE, Feature.LOADING}
        | {Feature.LOSS_PARAMETERS, Feature.UNUSED_PARAMETERS, Feature.SHARED_IN_STAGE, Feature.BUFFERS}
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING}
        | {Feature.DEFERRED_WEIGHTS, Feature.VARYING_SHAPES}
    ),
    boundary=BoundaryClaim(
        dtypes=("float32", "float64", "bfloat16", "float16"), min_ndim=3, max_ndim=3, differ=False
    ),
    reductions=("mean", "sum"),
    kwargs_scope="stage",
    patience=10.0,
)


def _arguments(plan: Plan) -> dict[str, Any]:
    """The engine's arguments that choose the schedule."""
    p = len(plan.ranks.pipeline_ranks)
    v_shaped = {"enable_zero_bubble": True, "zero_bubble_v_schedule": True}
    chosen: dict[str, dict[str, Any]] = {
        "1F1B": {},
        "Interleaved1F1B": {"interleave_group_size": p},
        "1F1BV": {"enable_1f1b_v": True},
        "ZB1P": {"enable_zero_bubble": True, "zero_bubble_max_pending_backward": p},
        "ZB2P": {"enable_zero_bubble": True, "zero_bubble_max_pending_backward": 2 * p},
        "ZBV": v_shaped,
        "VHalf": {**v_shaped, "zero_bubble_v_schedule_mem_setup": "half"},
        "VMin": {**v_shaped, "zero_bubble_v_schedule_mem_setup": "min"},
    }
    return chosen[plan.schedule]


class _Messages(ModuleType):
    """``torch.distributed`` for an engine that drops what it is given for a message, which ends it under gloo."""

    def __init__(self) -> None:
        super().__init__("torch.distributed")
        self._under_way: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def isend(self, *, tensor: torch.Tensor, dst: int, group: dist.ProcessGroup) -> Any:
        """``torch.distributed.isend``."""
        return self._kept(dist.isend(tensor, dst=dst, group=group))

    def irecv(self, *, tensor: torch.Tensor, src: int, group: dist.ProcessGroup) -> Any:
        """``torch.distributed.irecv``."""
        return self._kept(dist.irecv(tensor, src=src, group=group))

    def _kept(self, work: Any) -> Any:
        self._under_way.append(work)
        return work

    def settle(self) -> None:
        """Wait for all messages; gloo waits for another one where the engine has waited already."""
        for work in self._under_way:
            if not work.is_completed():
                work.wait()
        self._under_way.clear()


class _TorchOnCpu(TorchWithoutCuda):
    """``torch`` for the engine on the CPU."""

    cuda = SimpleNamespace(
        current_device=lambda: "cpu",
        synchronize=lambda: None,
        empty_cache=lambda: None,
        FloatTensor=torch.FloatTensor,
    )

    def __init__(self, messages: _Messages) -> None:
        super().__init__("torch")
        self.distributed = messages


class _RuntimesTorch(_TorchOnCpu):
    """The same for the module of the runtime, which moves new tensors to its device."""

    def empty(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        """``torch.empty``, where what nothing is written to is seen: the runtime also sends such memory."""
        (shape,) = size
        return torch.full(shape, torch.nan, **options)

    def tensor(self, data: Any, **options: Any) -> torch.Tensor:
        """``torch.tensor``, which ``cuda`` leaves where it is."""
        return _stays(torch.tensor(data, **options))

    def zeros(self, *size: Any, **options: Any) -> torch.Tensor:
        """``torch.zeros``, which ``cuda`` leaves where it is."""
        return _stays(torch.zeros(*size, **options))

    def Tensor(self, data: Any) -> torch.Tensor:  # noqa: N802 - torch's name
        """``torch.Tensor``, which ``cuda`` leaves where it is."""
        return _stays(torch.Tensor(data))


def _stays(tensor: torch.Tensor) -> torch.Tensor:
    tensor.cuda = lambda: tensor  # type: ignore[method-assign,assignment,misc]
    return tensor


class _Stage(nn.Module):
    """What the runtime drives: a module that gets its input before its forward."""

    def __init__(self, index: int, inner: nn.Module, config: Any, model_type: Any) -> None:
        super().__init__()
        self.index, self.inner, self.config, self.model_type = index, inner, config, model_type
        self.received: torch.Tensor | None = None

    def set_input_tensor(self, tensors: list[torch.Tensor | None]) -> None:
        (self.received,) = tensors

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*(args if self.received is None else (self.received,)), **kwargs)


class _ZeroBubblePipeline:
    """One rank's stages, and the process's runtime, which is set up for them."""

    def __init__(self, plan: Plan, messages: _Messages | None) -> None:
        self._plan, self._messages, self._modules = plan, messages, plan.build_owned()
        self.apply = step_modules(self._modules, plan.optimizer)
        edge = edge_of(plan)
        assert edge is not None, "every schedule is claimed for two ranks and more"
        self._edge = edge
        self._set_up()
        config = _config(plan, self._edge)
        from megatron.core.enums import ModelType

        self._stages = [_Stage(s, m, config, ModelType.encoder_or_decoder) for s, m in self._modules.items()]
        self._sources: list[tuple[Iterator[Microbatch], list[Iterator[Microbatch]]]] = []

    def _set_up(self) -> None:
        """Set the arguments of the training, and forget the schedule and the stores of the one before."""
        from megatron.core import num_microbatches_calculator, parallel_state, zbpp_utils
        from megatron.core.pipeline_parallel.zerobubble import runtime
        from megatron.core.pipeline_parallel.zerobubble.timer import ScheduleTimers
        from megatron.training import global_vars

        plan, v = self._plan, len(self._modules)
        arguments = zbpp_utils.add_zero_bubble_args(argparse.ArgumentParser()).parse_args([])
        facts = {
            **dict.fromkeys(("profile", "cpu_offload", "enable_exactly_numeric_match"), False),
            **dict.fromkeys(("recompute_granularity", "recompute_method", "recompute_num_layers")),
            "enable_zb_runtime": True,
            "num_seq_splits": 1,
            "hidden_size": self._edge.shape[-1],
            "num_attention_heads": 1,
            "seq_length": self._edge.shape[0],
            "pipeline_model_parallel_size": len(plan.ranks.pipeline_ranks),
            # what the store asks for
            "overlap_grad_reduce": False,
            "gradient_accumulation_fusion": True,
            "transformer_impl": "local",
            **_arguments(plan),
        }
        for name, value in facts.items():
            setattr(arguments, name, value)
        global_vars.set_args(arguments)
        parallel_state.set_virtual_pipeline_model_parallel_world_size(v if v > 1 else None)
        parallel_state.set_virtual_pipeline_model_parallel_rank(0 if v > 1 else None)
        self._set_microbatches = partial(
            setattr, num_microbatches_calculator, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR"
        )
        self._calculator = num_microbatches_calculator.ConstantNumMicroBatchesCalculator
        runtime.schedule_cache, runtime.shed_node_runtime, runtime.is_auto_schedule = None, None, False
        # the first step of all, and evaluations after it, begin with messages for NCCL
        ScheduleTimers.iter_counter = 0 if dist.get_backend() == "nccl" else 2
        self._store = zbpp_utils.WeightGradStore
        self._store.cache, self._store.weight_grad_queue = [], None
        zbpp_utils.RecomputeStore.recompute_queue = None
        builders = [plan.deferred_weights(module) for module in self._modules.values()]
        runtime.backward_step = partial(self._backward_step, _original(runtime), builders)

    def _backward_step(
        self, original: Callable[..., Any], builders: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """The engine's own, after which weight gradients that were left out go into its store."""
        from megatron.core import parallel_state

        found = original(*args, **kwargs)
        chunk = parallel_state.get_virtual_pipeline_model_parallel_rank() or 0
        if (builder := builders[chunk]) is not None:
            compute = builder()
            if self._store.split_bw():
                weight = next(self._stages[chunk].parameters())
                self._store.put(weight, lambda *, async_op: (), compute)
            else:
                compute()
        return found

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        trains, m = mode is Mode.TRAIN, batch.num_microbatches
        for stage in self._stages:
            stage.train(trains)
        self._loss_kwargs = batch.loss_kwargs
        self._set_microbatches(self._calculator(m, 1, 1))
        iterators = self._iterators(batch)
        first, second, _ = self._edge_shape(batch, iterators)
        with nullcontext() if trains else torch.no_grad():
            reported = get_forward_backward_func()(
                forward_step_func=self._forward_step,
                data_iterator=iterators,
                model=self._stages,
                num_microbatches=m,
                seq_length=first,  # what these two are called does not matter to the runtime
                micro_batch_size=second,
                forward_only=not trains,
            )
        if self._messages is not None:
            self._messages.settle()
        if not reported:
            return StepResult()
        losses, outputs = zip(*reported, strict=True)
        return StepResult(
            output=tree.tree_map(lambda *parts: torch.cat(parts, dim=batch.batch_dim), *outputs),
            losses=losses,
        )

    def _edge_shape(self, batch: Batch, iterators: list[Iterator[Microbatch]]) -> tuple[int, ...]:
        """The shape of all messages of a step, by its first microbatch, which stays in its iterator."""
        shape = list(self._edge.shape)
        if self._edge.batch_dim is not None:
            microbatch = next(iterators[0])
            iterators[0] = itertools.chain([microbatch], iterators[0])
            shape[self._edge.batch_dim] = tree.tree_leaves(microbatch.args)[0].shape[batch.batch_dim]
        return tuple(shape)

    def _iterators(self, batch: Batch) -> list[Iterator[Microbatch]]:
        """One for every stage of this rank; those of a source go on in the next step."""
        source = batch.source
        if source is None:
            return [iter(batch.microbatches) for _ in self._stages]
        for known, found in self._sources:
            if known is source:
                return found
        self._sources.append((source, list(itertools.tee(source, len(self._stages)))))
        return self._sources[-1][1]

    def _forward_step(self, loader: Any, stage: _Stage) -> tuple[Any, Any]:
        microbatch = loader.pop()

        def loss_of(output: Any) -> tuple[Any, ...]:
            loss = self._plan.loss.function(output, microbatch.target, **self._loss_kwargs)
            reported = (loss.detach().clone(), tree.tree_map(torch.Tensor.detach, output))
            tokens = () if self._plan.loss.reduction == "mean" else (torch.ones_like(loss, dtype=torch.int),)
            return loss, *tokens, reported  # a mean is divided by m, in place; a sum counts as tokens

        return stage(*microbatch.args, **microbatch.kwargs.get(stage.index, {})), loss_of

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def close(self) -> None:
        self._stages.clear()


class ZeroBubble:
    """Adapter for ``megatron.core.pipeline_parallel.zerobubble`` of the fork."""

    def describe(self) -> Description:
        """What the runtime takes; raises `Unsupported` if the fork cannot be imported."""
        if find_spec("megatron") is None or not has_file(
            "megatron.core", *_RUNTIME.split(".")[2:-1], "runtime.py"
        ):
            raise Unsupported(f"the fork of Megatron-LM is not installed: {_REMEDY}")
        return Description(
            name="zero-bubble",
            version=_release(),
            capabilities=_CAPABILITIES,
            packages=("megatron.core.pipeline_parallel.zerobubble",),
        )

    def setup_process(self) -> None:
        """Import the engine without the kernels that it does not use here, and make its groups."""
        stand_in_for(*_KERNELS)
        without_nvtx = (
            nullcontext() if torch.cuda.is_available() else mock.patch("torch.cuda.nvtx.range", _as_is)
        )
        with without_nvtx:
            runtime = import_module(_RUNTIME)
        from megatron.core import parallel_state, timers
        from megatron.core.pipeline_parallel import p2p_communication, schedules
        from megatron.training import global_vars

        script: Any = import_module("pretrain_gpt")
        script.get_batch = next
        global_vars._GLOBAL_TIMERS = timers.Timers(0, "minmax")
        self._engine: tuple[Any, ...] = (runtime, schedules, p2p_communication, timers)
        self._messages = _Messages()
        arguments = SimpleNamespace(
            pre_communication_optimization=dist.get_backend() == "nccl",  # asks for options of NCCL
            zero_bubble_v_schedule=False,
            enable_1f1b_v=False,
        )
        global_vars.set_args(arguments)
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size=dist.get_world_size())

    def build(self, plan: Plan) -> _ZeroBubblePipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world, which the runtime gathers from.
            ValueError: stages are placed otherwise than the schedule wants them, which the runtime does not know.
        """
        require_whole_world(plan.ranks)
        claim = next(one for one in _CAPABILITIES.schedules if one.name == plan.schedule)
        wanted = placement_of(
            claim.placement, num_ranks=len(plan.ranks.pipeline_ranks), num_stages=len(plan.stages)
        )
        if plan.placement != wanted:
            raise ValueError(
                f"stages are placed on ranks {plan.placement}, but {plan.schedule} wants {wanted}"
            )
        on_cpu = plan.ranks.device.type == "cpu"
        for module in self._engine:
            stand_in = _RuntimesTorch if module.__name__ == _RUNTIME else _TorchOnCpu
            module.torch = stand_in(self._messages) if on_cpu else torch
        return _ZeroBubblePipeline(plan, self._messages if on_cpu else None)


def _as_is(*_: Any) -> Callable[[Any], Any]:
    """In the place of ``torch.cuda.nvtx.range``, with which the engine decorates functions."""
    return lambda function: function


def _original(runtime: Any) -> Callable[..., Any]:
    """The engine's function for a backward, which is replaced in its runtime only."""
    from megatron.core.pipeline_parallel import schedules

    found: Callable[..., Any] = schedules.backward_step
    return found


def _release() -> str:
    """What the fork says of its release, without importing it."""
    spec = find_spec("megatron.core")
    text = Path(spec.origin or "").with_name("package_info.py").read_text() if spec else ""
    return ".".join(re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)", text, re.MULTILINE))


def _config(plan: Plan, edge: TensorSpec) -> Any:
    from megatron.core.transformer import TransformerConfig

    v = len(plan.owned_stages())
    return TransformerConfig(
        num_layers=len(plan.stages),
        num_layers_without_padding=len(plan.stages),
        num_attention_heads=1,  # required, but not used here
        hidden_size=edge.shape[-1],
        pipeline_model_parallel_size=len(plan.ranks.pipeline_ranks),
        virtual_pipeline_model_parallel_size=v if v > 1 else None,
        pipeline_dtype=edge.dtype,
        calculate_per_token_loss=plan.loss.reduction == "sum",  # then no loss is divided
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
        variable_seq_lengths=True,  # microbatches of several sizes may come, as FWD-2 has them
    )
