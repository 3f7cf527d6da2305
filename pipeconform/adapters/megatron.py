"""megatron-core's pipeline schedules behind the contract.

The schedules are functions that take this rank's stages (with ``set_input_tensor``), an iterator over microbatches for
each, and a ``forward_step_func``, which runs a stage and returns a function that computes a loss from its output.

Steps, clipped or with copies of 16-bit parameters and scaled losses, are those of megatron-core's optimizers, replicas
those of its ``DistributedDataParallel``, and checkpoints those of its ``dist_checkpointing``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as tree

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Bystander,
    Capabilities,
    ClippingClaim,
    DataParallelClaim,
    Description,
    Feature,
    Microbatch,
    MicrobatchRule,
    Mode,
    Operation,
    Placement,
    Plan,
    ScheduleClaim,
    StepResult,
    TensorSpec,
    ZeroGrad,
    module_gradients,
    module_state,
    placement_of,
    step_modules,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.megatron_optimizer import MegatronSteps
from pipeconform.adapters.megatron_replicas import MegatronReplicas, buffered_gradients, is_wrapped
from pipeconform.adapters.megatron_saving import DistributedCheckpoints, OlderCheckpoints
from pipeconform.adapters.megatron_ties import MegatronTies, group_of_ends
from pipeconform.adapters.one_edge import edge_of
from pipeconform.adapters.without_cuda import run_on

__all__ = ["Megatron"]

_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="1F1B", family="one_f_one_b"),
        ScheduleClaim(
            name="Interleaved1F1B",
            stages_per_rank=(2, 3, 4),
            min_ranks=2,
            microbatches=MicrobatchRule.MULTIPLE_OF_RANKS,
            family="interleaved_one_f_one_b",
        ),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS, Feature.MICROBATCH_LOSSES}
        | {Feature.EVAL, Feature.KWARGS, Feature.OBJECTS, Feature.LOSS_KWARGS, Feature.TOKENS}
        | {Feature.ACCUMULATION, Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING, Feature.LOADING}
        | {Feature.BATCH_DIM, Feature.BATCH_SOURCES, Feature.DECLARED_BOUNDARIES}
        | {
            Feature.FROZEN,
            Feature.FREEZING,
            Feature.LOSS_PARAMETERS,
            Feature.UNUSED_PARAMETERS,
            Feature.SHARED_IN_STAGE,
            Feature.BUFFERS,
        }
        | {Feature.UNEVEN_BATCHES, Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}
        | {Feature.DROPOUT, Feature.USER_HOOKS, Feature.OPTIMIZER, Feature.STATE}
        | {Feature.CLIPPING, Feature.MASTER_WEIGHTS, Feature.LOSS_SCALING, Feature.FLOAT32_SUMS}
        | {Feature.SHARED_ACROSS_RANKS, Feature.SAVING}
    ),
    boundary=BoundaryClaim(dtypes=("float64", "float32", "bfloat16", "float16"), min_ndim=3, max_ndim=3),
    clipping=ClippingClaim(norms=("two",), dtypes=("float32",)),
    data_parallel=DataParallelClaim(),
    reductions=("mean", "sum"),
    sub_groups=True,
    kwargs_scope="stage",
    tied_stages="ends",
    patience=10.0,
)


class _Stage(nn.Module):
    """What the schedules drive: a module that gets its input before its forward."""

    def __init__(self, index: int, inner: nn.Module, config: Any, model_type: Any) -> None:
        super().__init__()
        self.index, self.inner, self.config, self.model_type = index, inner, config, model_type
        self.received: torch.Tensor | None = None
        # what finalize_model_grads asks of language models
        self.pre_process, self.share_embeddings_and_output_weights = index == 0, False
        self.ddp_config = SimpleNamespace(use_megatron_fsdp=False)

    def shares(self, name: str) -> nn.Parameter:
        """Tell that a parameter is the other end's, too, and return it."""
        self.share_embeddings_and_output_weights = True
        self._shared = self.inner.get_parameter(name)
        return self._shared

    def finish_grad_sync(self, *, force_all_reduce: bool | None = False) -> None:
        """Nothing is to be reduced over replicas."""

    def scale_gradients(self, factor: float) -> None:
        """Leave sums undivided, whose microbatches the schedule counts as tokens."""

    def shared_embedding_or_output_weight(self) -> nn.Parameter:
        """The parameter that the first and the last stage share."""
        return self._shared

    def set_input_tensor(self, tensors: list[torch.Tensor | None]) -> None:
        (self.received,) = tensors

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = self.inner(*(args if self.received is None else (self.received,)), **kwargs)
        if not self.config.deallocate_pipeline_outputs or not isinstance(found, torch.Tensor):
            return found
        from megatron.core.utils import make_viewless_tensor

        # as the engine's own models do: no memory would be freed by a view
        return make_viewless_tensor(inp=found, requires_grad=found.requires_grad, keep_graph=True)


class _MegatronPipeline:
    """One rank's stages, and the schedule for their number."""

    def __init__(
        self,
        plan: Plan,
        others: Mapping[str, dist.ProcessGroup],
        *,
        ends: dist.ProcessGroup | None,
        steps: type[MegatronSteps],
        replicas: type[MegatronReplicas],
        ties: type[MegatronTies],
        frees_outputs: bool,
        overlaps: bool,
        distributes: bool,
    ) -> None:
        from megatron.core.enums import ModelType
        from megatron.core.pipeline_parallel import p2p_communication, schedules
        from megatron.core.process_groups_config import ProcessGroupCollection

        self._plan, self._modules, group = plan, plan.build_owned(), plan.ranks.pipeline_group
        interleaved = len(self._modules) > 1
        name = "pipelining_with_interleaving" if interleaved else "pipelining_without_interleaving"
        edge = edge_of(plan)
        first, second, _ = (1, 1, 1) if edge is None else edge.shape
        config = _config(
            plan,
            edge,
            interleaved=interleaved,
            frees_outputs=frees_outputs,
            overlaps=interleaved and overlaps,
        )
        self._stages = [_Stage(s, m, config, ModelType.encoder_or_decoder) for s, m in self._modules.items()]
        self._ties = ties(plan, self._stages, ends) if plan.tied else None
        self._replicas: MegatronReplicas | None = None
        if is_wrapped(plan):
            self._replicas = replicas(plan, self._stages, alone=others["tp"])
            self._replicas.tell(config)
            others = {**others, "dp_cp": self._replicas.group}
        elif self._ties is not None:
            self._ties.tell(config)
        self._schedule = partial(
            getattr(schedules, f"forward_backward_{name if len(plan.stages) > 1 else 'no_pipelining'}"),
            forward_step_func=self._forward_step,
            model=self._stages if self._replicas is None else self._replicas.stages,
            seq_length=first,  # what these two are called does not matter to the schedule
            micro_batch_size=second,
            p2p_communicator=p2p_communication.P2PCommunicator(group, config),
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None if self._ties is None else self._ties.group, pos_embd=None, **others
            ),
        )
        self._sources: list[tuple[Iterator[Microbatch], list[Iterator[Microbatch]]]] = []
        self._apply: Callable[[Operation], None] = step_modules(self._modules, plan.optimizer)
        self._steps: MegatronSteps | None = None
        if plan.optimizer is not None:
            self._steps = steps(plan, self._modules, alone=others["tp"])
            self._apply, config.grad_scale_func = self._steps.apply, self._steps.scaled
        self._checkpoints: OlderCheckpoints = (
            DistributedCheckpoints(plan, self._modules, self._steps, alone=others["tp"])
            if distributes
            else OlderCheckpoints(plan, self._modules, self._steps)
        )

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        trains = mode is Mode.TRAIN
        for stage in self._stages:
            stage.train(trains)
        self._loss_kwargs = batch.loss_kwargs
        with nullcontext() if self._ties is None or not trains else self._ties.step():
            reported = self._schedule(
                data_iterator=self._iterators(batch),
                num_microbatches=batch.num_microbatches,
                forward_only=not trains,
            )
        if not reported:
            return StepResult()
        losses, outputs = zip(*reported, strict=True)
        merged = tree.tree_map(lambda *parts: torch.cat(parts, dim=batch.batch_dim), *outputs)
        return StepResult(output=merged, losses=losses if trains else None)

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

    def _forward_step(self, data: Iterator[Microbatch], stage: Any) -> tuple[Any, Any]:
        microbatch = next(data)
        index = stage.index if self._replicas is None else stage.module.index

        def loss_of(output: Any) -> tuple[Any, ...]:
            loss = self._plan.loss.function(output, microbatch.target, **self._loss_kwargs)
            reported = (loss.detach().clone(), tree.tree_map(torch.Tensor.detach, output))
            tokens = () if self._plan.loss.reduction == "mean" else (torch.ones_like(loss, dtype=torch.int),)
            return loss, *tokens, reported  # a mean is divided by m, in place; a sum counts as tokens

        return stage(*microbatch.args, **microbatch.kwargs.get(index, {})), loss_of

    def apply(self, operation: Operation) -> None:
        self._apply(operation)
        if self._replicas is not None and isinstance(operation, ZeroGrad):
            self._replicas.clear()

    def loss_scale(self) -> float:
        return 1.0 if self._steps is None else self._steps.scale()

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        gradients = module_gradients if self._replicas is None else buffered_gradients
        return gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        self._checkpoints.save(folder)

    def restore(self, folder: Path) -> None:
        self._checkpoints.restore(folder)

    def close(self) -> None:
        self._stages.clear()
        if self._ties is not None:
            self._ties.close()


class Megatron:
    """Adapter for ``megatron.core.pipeline_parallel.schedules``."""

    configured = ""
    """What another configuration than this one is called in results."""
    steps = MegatronSteps
    """What steps in the place of torch's optimizers."""
    replicas = MegatronReplicas
    """What wraps the stages of replicas."""
    ties = MegatronTies
    """What holds the weights that the first and the last stage share."""
    frees_outputs = False
    """Whether a stage's output is freed once it is sent (``deallocate_pipeline_outputs``)."""
    overlaps = True
    """Whether interleaved stages compute while messages are under way (``overlap_p2p_comm``), as in Megatron-LM."""
    distributes = True
    """Whether checkpoints are distributed ones, as they are by default in Megatron-LM."""

    def describe(self) -> Description:
        """The schedules' documented features; raises `Unsupported` if there is no ``P2PCommunicator`` yet."""
        release = require_release("megatron-core", at_least=(0, 15), extra="megatron")
        return Description(
            name=self.configured or "megatron-core",
            version=release,
            built_on="megatron-core" if self.configured else "",
            capabilities=_CAPABILITIES,
            packages=("megatron.core.pipeline_parallel",),
        )

    def setup_process(self) -> None:
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
        self._others = dict.fromkeys(("tp", "cp", "dp_cp"), alone)

    def build(self, plan: Plan) -> _MegatronPipeline | Bystander:
        """Build on this rank. The schedules do not know which stages they run, so this is checked here."""
        p, stages = len(plan.ranks.pipeline_ranks), len(plan.stages)
        if plan.placement != placement_of(Placement.LOOP, num_ranks=p, num_stages=stages):
            raise ValueError(f"stages are placed on ranks {plan.placement}, but {plan.schedule} wants a loop")
        from megatron.core.pipeline_parallel import p2p_communication, schedules

        run_on(plan.ranks.device, p2p_communication, schedules)
        ends = group_of_ends(plan) if plan.tied else None
        if plan.ranks.pipeline_rank is None:
            return Bystander()
        return _MegatronPipeline(
            plan,
            self._others,
            ends=ends,
            steps=self.steps,
            replicas=self.replicas,
            ties=self.ties,
            frees_outputs=self.frees_outputs,
            overlaps=self.overlaps,
            distributes=self.distributes,
        )


class MegatronLM(Megatron):
    """The same schedules as Megatron-LM configures them: every output is freed once it is sent."""

    configured = "megatron-lm"
    frees_outputs = True


class MegatronBatched(Megatron):
    """The same schedules with the defaults of ``ModelParallelConfig``: all messages in batches, none overlapped.

    Checkpoints are in the older format (``--ckpt-format torch``).
    """

    configured = "megatron-batched"
    overlaps = False
    distributes = False


def _config(
    plan: Plan, edge: TensorSpec | None, *, interleaved: bool, frees_outputs: bool, overlaps: bool
) -> Any:
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=len(plan.stages),
        num_attention_heads=1,  # required, but not used here
        hidden_size=1 if edge is None else edge.shape[-1],
        pipeline_model_parallel_size=len(plan.ranks.pipeline_ranks),
        virtual_pipeline_model_parallel_size=len(plan.owned_stages()) if interleaved else None,
        pipeline_dtype=None if edge is None else edge.dtype,
        variable_seq_lengths=plan.varying_shapes,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - the other one forbids that, experts or not
        calculate_per_token_loss=plan.loss.reduction == "sum",  # then no loss is divided
        overlap_p2p_comm=overlaps,
        batch_p2p_comm=not overlaps,
        deallocate_pipeline_outputs=frees_outputs,
    )
