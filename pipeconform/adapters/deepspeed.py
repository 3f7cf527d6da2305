"""DeepSpeed's pipeline engine behind the contract, alone or in replicas, and with ZeRO of stage 1.

The engine takes the whole list of layers on every rank and an iterator over microbatches, and runs the whole step
itself: ``train_batch`` runs the schedule, clips the gradients, steps the optimizer and clears the gradients. They are
therefore copied before it clips and steps (`Capabilities.fused_optimizer`).

Of half precision only bfloat16 with float32 copies of the parameters is claimed, which is how the engine trains in it.
Gradients are then those that DeepSpeed shows (``deepspeed.utils.safe_get_full_grad``), as with ZeRO.

Autocast is what its configuration calls ``torch_autocast``: it leaves that of the caller for its own. In float16 the
plain engine scales losses with a scaler of torch's; ZeRO has another, whose first scale and backoff cannot be chosen.

Not claimed: float64 (it converts every model to float32), outputs (an evaluation returns only the last microbatch's),
sums (it always averages), accumulation over steps (it clears the gradients).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    ClippingClaim,
    DataParallelClaim,
    Description,
    Feature,
    Microbatch,
    Mode,
    Operation,
    Placement,
    Plan,
    ScheduleClaim,
    SgdStep,
    StepResult,
    ZeroGrad,
    module_gradients,
    module_state,
    optimizer_of,
)
from pipeconform.adapters.chained import Chained
from pipeconform.adapters.installed import has_file, require_release
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.errors import Unsupported

__all__ = ["DeepSpeed", "DeepSpeedZero1"]

_DUAL_PIPE_V = "DualPipeV"
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="1F1B", family="one_f_one_b"),
        ScheduleClaim(
            name=_DUAL_PIPE_V,
            placement=Placement.V,
            stages_per_rank=(2,),
            min_microbatches_per_stage=1,
            takes_placement=False,
            # it refuses shapes that vary, and layers of one rank that are tied are one layer with all their weights
            lacks=frozenset({Feature.VARYING_SHAPES, Feature.UNEVEN_BATCHES, Feature.SHARED_ACROSS_RANKS}),
        ),
    ),
    features=frozenset(
        {Feature.EVAL, Feature.TOKENS, Feature.SHARED_IN_STAGE, Feature.BUFFERS, Feature.DROPOUT}
        | {Feature.USER_HOOKS, Feature.UNEVEN_BATCHES, Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}
        | {Feature.OPTIMIZER, Feature.STATE, Feature.SHARED_ACROSS_RANKS}
        | {Feature.CUSTOM_FUNCTIONS, Feature.CHECKPOINTING, Feature.MASTER_WEIGHTS}
        | {Feature.AUTOCAST, Feature.SCALED_AUTOCAST}
        | {
            Feature.SAVING,
            Feature.BATCH_SOURCES,
            Feature.CLIPPING,
            Feature.LOSS_PARAMETERS,
            Feature.RECOMPUTATION,
        }
    ),
    boundary=BoundaryClaim(
        max_tensors=4, containers=("tensor", "tuple"), non_float_tensors=True, complex_tensors=True
    ),
    clipping=ClippingClaim(norms=("two",)),
    data_parallel=DataParallelClaim(),
    fused_optimizer=True,
    loss_on="all",
    patience=10.0,
)


# averaged in bfloat16 by default, even if there is a single replica
_FLOAT32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}


class _DeepSpeedPipeline:
    """One rank's engine."""

    def __init__(self, plan: Plan, *, zero: int) -> None:
        import deepspeed

        os.environ["LOCAL_RANK"] = str(plan.ranks.device.index or 0)
        layers = [build() for build in plan.stages]
        self._modules: dict[int, nn.Module] = {s: layers[s] for s in plan.owned_stages()}
        self._samples_at_once = plan.microbatch_size * plan.ranks.num_replicas
        self._replicated, self._asks = plan.ranks.num_replicas > 1, plan.master_weights or zero > 0
        self._gradients: dict[int, dict[str, torch.Tensor | None]] = {}
        self.apply(ZeroGrad())
        before = set(_groups())
        module = _module_class(plan)(
            [_layer(s, layer, plan.tied) for s, layer in enumerate(layers)],
            topology=_topology(plan),
            loss_fn=plan.loss.function,
            partition_method="uniform",
            dynamic_shape=plan.varying_shapes,
        )
        # The engine does not run backward without an optimizer, so it gets one that changes nothing.
        optimizer = optimizer_of(module.parameters(), plan.optimizer or SgdStep(lr=0.0))
        assert optimizer is not None, "every stage has something to train: frozen stages are not claimed"
        self._engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": plan.microbatch_size,
                "gradient_accumulation_steps": plan.num_microbatches,
                "gradient_clipping": 0.0 if plan.clipping is None else plan.clipping.max_norm,
                "torch_autocast": _autocast(plan.autocast),
                "bf16": {"enabled": plan.master_weights or plan.float32_sums},
                **(_FLOAT32_SUMS if plan.float32_sums else {}),
                "zero_optimization": {"stage": zero},
                "zero_allow_untested_optimizer": True,
                "pipeline": {"activation_checkpoint_interval": int(plan.recompute)},
                "steps_per_print": 10**9,
            },
        )
        if (scaling := plan.loss_scaling) is not None:
            # the configuration has no names for these
            new = {"scale": scaling.initial, "backoff_factor": scaling.backoff}
            self._scaler.load_state_dict({**self._scaler.state_dict(), **new})
        self._engine._take_model_step = self._keeping_first(self._engine._take_model_step)
        self._own_groups = [group for group in _groups() if group not in before]

    def _keeping_first(self, step: Callable[..., None]) -> Callable[..., None]:
        """Copy the gradients before the engine clips them and steps; ZeRO has none left for the optimizer's hooks."""

        def keep_and_step(*args: Any, **options: Any) -> None:
            self._keep_gradients()
            step(*args, **options)

        return keep_and_step

    def _keep_gradients(self) -> None:
        if self._asks:
            from deepspeed.utils import safe_get_full_grad

            self._gradients = {
                s: {name: safe_get_full_grad(p) for name, p in module.named_parameters()}
                for s, module in self._modules.items()
            }
            return
        self._gradients = {
            s: {name: None if g is None else g.clone() for name, g in named.items()}
            for s, named in module_gradients(self._modules).items()
        }

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        source = batch.microbatches if batch.source is None else batch.source
        data = map(_as_pair, source)
        if mode is Mode.EVAL:
            loss = self._engine.eval_batch(data, num_micro_batches=batch.num_microbatches)
            return StepResult(loss=loss.reshape(()))  # one element in one dimension on all ranks but the last
        if batch.num_microbatches != self._engine.gradient_accumulation_steps():
            self._engine.set_train_batch_size(self._samples_at_once * batch.num_microbatches)
        loss = self._engine.train_batch(data)
        return StepResult(loss=self._engine.dp_group_loss if self._replicated else loss)

    def apply(self, operation: Operation) -> None:
        """Clear the copies of gradients; the engine has stepped and cleared its own already."""
        if isinstance(operation, ZeroGrad):
            self._gradients = {
                s: dict.fromkeys(name for name, _ in module.named_parameters())
                for s, module in self._modules.items()
            }

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return self._gradients

    def gradient_norm(self) -> torch.Tensor:
        """As ZeRO's optimizer measured it in the last step, before it clipped; the plain engine measures none."""
        return torch.as_tensor(self._engine.get_global_grad_norm()).reshape(())

    def loss_scale(self) -> float:
        """The scale of this rank's own scaler, which the engine has where autocast is in float16."""
        return float(self._scaler.get_scale())

    @property
    def _scaler(self) -> Any:
        return self._engine.torch_autocast_z0_gradscaler

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        self._engine.save_checkpoint(str(folder))

    def restore(self, folder: Path) -> None:
        self._engine.load_checkpoint(str(folder))

    def close(self) -> None:
        """Destroy the process groups that the engine leaves behind, with their threads and sockets."""
        if self._engine is None:
            return
        # The engine hooks the last output's graph: a cycle that is never collected, with all its threads.
        self._engine.pipe_buffers.clear()
        self._engine.loss = None
        self._engine.destroy()
        self._engine = None
        while self._own_groups:
            dist.destroy_process_group(self._own_groups.pop())


class DeepSpeed:
    """Adapter for ``deepspeed.pipe.PipelineModule`` and its engine from ``deepspeed.initialize``."""

    zero = 0
    """The stage of ZeRO: with 1, every replica steps a part of the parameters."""
    claims = _CAPABILITIES

    def describe(self) -> Description:
        """DeepSpeed's documented features.

        Raises:
            Unsupported: it is not installed, or too old.
        """
        version = require_release("deepspeed", at_least=(0, 16), extra="deepspeed")
        return Description(
            name="deepspeed",
            version=version,
            capabilities=_offered(self.claims),
            packages=("deepspeed.runtime.pipe",),
        )

    def setup_process(self) -> None:
        """Keep the engine on the CPU if the run is, whatever the machine has, and away from its compiler."""
        if dist.get_backend() == "gloo":
            os.environ["DS_ACCELERATOR"] = "cpu"  # read when the package is imported
        import deepspeed

        # The shared-memory collectives would be compiled at first use, under a lock in the home folder.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.utils.logger.setLevel("ERROR")
        deepspeed.init_distributed(dist.get_backend(), auto_mpi_discovery=False, verbose=False)

    def build(self, plan: Plan) -> _DeepSpeedPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world. (The engine checks the number of stages.)
        """
        require_whole_world(plan.ranks)
        return _DeepSpeedPipeline(plan, zero=self.zero)


class DeepSpeedZero1(DeepSpeed):
    """The same engine with the states of optimizers in parts over the replicas."""

    zero = 1
    claims = replace(
        _CAPABILITIES,
        # without ZeRO the engine refuses float32 sums of bfloat16 gradients
        features=_CAPABILITIES.features - {Feature.SCALED_AUTOCAST}
        | {Feature.GRADIENT_NORM, Feature.FLOAT32_SUMS},
    )


def _offered(claims: Capabilities) -> Capabilities:
    """Without DualPipeV where the installed release has none."""
    if has_file("deepspeed", "runtime", "pipe", "dualpipev.py"):
        return claims
    return replace(claims, schedules=tuple(one for one in claims.schedules if one.name != _DUAL_PIPE_V))


def _autocast(dtype: torch.dtype | None) -> dict[str, Any]:
    """The section of the configuration, in which the engine wants a dtype in any case."""
    return {"enabled": dtype is not None, "dtype": str(dtype or torch.bfloat16).removeprefix("torch.")}


def _module_class(plan: Plan) -> Any:
    import deepspeed.pipe

    return deepspeed.pipe.DualPipeVModule if plan.schedule == _DUAL_PIPE_V else deepspeed.pipe.PipelineModule


def _as_pair(one: Microbatch) -> tuple[Any, Any]:
    """A microbatch as the engine takes it from its iterator: inputs, a tuple only if there are several, and labels."""
    return one.args if len(one.args) > 1 else one.args[0], one.target


def _topology(plan: Plan) -> Any:
    """The ranks of stages and replicas: neighbours are those of a pipeline, or those of a stage.

    Raises:
        Unsupported: they lie otherwise.
    """
    from deepspeed.runtime.pipe.topology import ProcessTopology

    ranks, p = plan.ranks, len(plan.ranks.pipeline_ranks)
    if ranks.pipeline_ranks == tuple(range(ranks.replica * p, (ranks.replica + 1) * p)):
        return ProcessTopology(axes=["data", "pipe"], dims=[ranks.num_replicas, p])
    if ranks.pipeline_ranks == tuple(range(ranks.replica, ranks.world_size, ranks.num_replicas)):
        return ProcessTopology(axes=["pipe", "data"], dims=[p, ranks.num_replicas])
    raise Unsupported(f"a pipeline on ranks {list(ranks.pipeline_ranks)} of {ranks.world_size}")


def _layer(stage: int, module: nn.Module, tied: Sequence[Mapping[int, str]]) -> Any:
    """A stage as one of the engine's layers; layers with one key name share a parameter, whose gradients it adds up.

    Layers with one key share their module inside a rank: where a rank has two stages, ties are not claimed.
    """
    from deepspeed.pipe import TiedLayerSpec

    for number, where in enumerate(tied):
        if stage in where:
            names = [f"inner.{where[stage]}"]
            return TiedLayerSpec(f"tied{number}", Chained, module, tied_weight_attr=names)
    return Chained(module)


def _groups() -> list[dist.ProcessGroup]:
    return list(dist.distributed_c10d._world.pg_map)
