"""torchtitan's pipeline behind the contract: its split of a model, its training step and its validation.

``pipeline_llm`` splits a decoder by the names of its layers and makes a schedule of torch.distributed.pipelining; the
`Trainer` drives it with the microbatches of its data loader, and the `Validator` evaluates under it. Here the model has
one layer for each stage, which is put in its place where users shard a part of the model. Embedding, norm and head,
which the engine keeps in the first and the last stage, are parts of these layers: its split counts them as
nothing. Trainer and validator have no data loader and no model of their own, but are otherwise the engine's.

Neither returns outputs: they are taken where the engine hands them over, in the loss function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import (
    AdamStep,
    Batch,
    BoundaryClaim,
    Capabilities,
    Description,
    Feature,
    GradientScale,
    Mode,
    Operation,
    OptimizerStep,
    Plan,
    SgdStep,
    StepResult,
    ZeroGrad,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.torch_schedules import driven
from pipeconform.adapters.whole_world import require_whole_world

__all__ = ["CAPABILITIES", "REMEDY", "Keep", "Meshes", "TitanPipeline", "Torchtitan", "Variety"]

REMEDY = "pip install torchtitan"
_IMPORTED = (
    "torchtitan.distributed.pipeline_parallel",
    "torchtitan.components.optimizer",
    "torchtitan.components.validate",
    "torchtitan.trainer",
)
CAPABILITIES = Capabilities(
    schedules=driven(
        "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
    ),
    features=frozenset(
        {
            Feature.OUTPUTS,
            Feature.EVAL,
            Feature.EVAL_LOSSES,
            Feature.ACCUMULATION,
            Feature.KWARGS,
            Feature.TOKENS,
        }
        | {Feature.BLOCK_MASKS, Feature.FROZEN, Feature.UNUSED_PARAMETERS, Feature.SHARED_IN_STAGE}
        | {Feature.BUFFERS, Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS}
        | {Feature.CHECKPOINTING, Feature.AUTOCAST, Feature.OPTIMIZER, Feature.CLIPPING}
        | {Feature.GRADIENT_NORM, Feature.STATE, Feature.LOADING, Feature.SAVING}
    ),
    boundary=BoundaryClaim(
        max_tensors=4,
        containers=("tensor", "tuple"),
        dtypes=("float64", "float32", "bfloat16"),
        no_grad_tensors=True,
        non_float_tensors=True,
        inputs=1,
    ),
    scale=GradientScale(at="loss"),
    reductions=("mean", "sum"),
    kwargs_scope="pipeline",  # the trainer gives every stage all of them
)


class _Model(nn.Module):
    """A decoder whose layers are the stages; the engine leaves one in each of its copies."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(stage): nn.Identity() for stage in range(count)})
        self.takes: frozenset[str] = frozenset()
        """The keyword arguments of this part; the engine gives every part all of them."""

    @property
    def stage(self) -> int:
        (name,) = self.layers
        return int(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (layer,) = self.layers.children()
        return layer(*args, **{name: value for name, value in kwargs.items() if name in self.takes})


@functools.cache
def _loss_class() -> Any:
    """The engine's loss, which divides by the number of valid tokens, around a function of the user's."""
    from torchtitan.components.loss import BaseLoss

    class Loss(BaseLoss):  # type: ignore[misc]
        def __init__(self, function: Any) -> None:
            self.fn = function

    return Loss


@functools.cache
def _optimizers_class() -> Any:
    """The engine's optimizers, with SGD beside its own: it lets its users derive from the class."""
    from torchtitan.components.optimizer import OptimizersContainer

    class Optimizers(OptimizersContainer):  # type: ignore[misc]
        @staticmethod
        def _resolve_optimizer_factory(name: str) -> Any:
            return torch.optim.SGD if name == "SGD" else OptimizersContainer._resolve_optimizer_factory(name)

    return Optimizers


class _Loader:
    """What the validator asks for data, and where it reports a loss."""

    def __init__(self) -> None:
        self.microbatches: list[tuple[dict[str, Any], torch.Tensor]] = []
        self.loss = math.nan
        self.ntokens_since_last_log = 0

    def build(self, **_: Any) -> _Loader:
        return self

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        return iter(self.microbatches)

    def log_validation(self, *, loss: float, step: int) -> None:
        self.loss = loss


class Meshes:
    """The device meshes of a world, which the engine makes once for a training, with groups that it never ends."""

    def __init__(self) -> None:
        self._world: Any = None
        self._dims: Any = None

    def of_world(self, make: Callable[[], Any]) -> Any:
        """Those of the present default group; `make` makes what they are built from."""
        if self._world is not dist.group.WORLD:
            self._world, self._dims = dist.group.WORLD, make()
            self._dims.build_mesh()
        return self._dims


Keep = Callable[[Sequence[torch.Tensor]], None]
"""Keeps the last stage's output of a microbatch, as a sequence of tensors."""


@dataclass(frozen=True, kw_only=True)
class Variety:
    """What differs between the engine's two pipelines, with and without graphs."""

    trainer: type
    split: Callable[..., tuple[Any, list[nn.Module], bool, bool]]
    """Splits a model and makes its schedule, as ``pipeline_llm`` does."""
    hand_over: Callable[[Sequence[torch.Tensor], Keep], torch.Tensor | None]
    """Called in the loss function: has an output kept whenever the loss of a microbatch is computed. Returns what is
    added to the loss, if anything."""


class TitanPipeline:
    """One rank's parts of the model, and the engine's trainer, validator and optimizers around them."""

    def __init__(self, plan: Plan, meshes: Meshes, variety: Variety) -> None:
        from torchtitan.components.validate import Validator
        from torchtitan.config import ParallelismConfig, TrainingConfig
        from torchtitan.distributed import ParallelDims, parallel_dims
        from torchtitan.distributed.utils import get_spmd_context
        from torchtitan.tools import utils

        device = plan.ranks.device
        utils.device_type = parallel_dims.device_type = device.type  # by itself it asks the machine
        self._plan, self._variety, self._modules = plan, variety, dict[int, nn.Module]()
        built, ranks, m = plan.build_owned(), len(plan.ranks.pipeline_ranks), plan.num_microbatches
        parallelism = ParallelismConfig(
            pipeline_parallel_degree=ranks,
            pipeline_parallel_schedule=plan.schedule,
            pipeline_parallel_microbatch_size=plan.microbatch_size,
            pipeline_parallel_layers_per_stage=1,
            pipeline_parallel_first_stage_less_layers=0,
            pipeline_parallel_last_stage_less_layers=0,
        )
        training = TrainingConfig(local_batch_size=m * plan.microbatch_size)
        self._dims = meshes.of_world(lambda: ParallelDims.from_config(parallelism, plan.ranks.world_size))

        def fill(part: _Model, **_: Any) -> _Model:
            stage = part.stage
            self._modules[stage] = built[stage]
            part.layers[str(stage)] = built[stage]
            return part

        self._loss: Any = _loss_class()(self._of_microbatch)
        self._outputs: list[Sequence[torch.Tensor]] = []
        self._is_tuple = False
        made: Any = object.__new__(variety.trainer)
        self._trainer = made
        made.loss_fn = self._loss
        made.pp_schedule, made.model_parts, made.pp_has_first_stage, made.pp_has_last_stage = variety.split(
            _Model(len(plan.stages)),
            parallel_dims=self._dims,
            training=training,
            parallelism=parallelism,
            ac_config=None,
            dump_folder="",
            device=device,
            model_config=SimpleNamespace(layers=[None] * len(plan.stages)),
            parallelize_fn=fill,
            loss_fn=self._loss,
        )
        made.config = SimpleNamespace(parallelism=parallelism, training=training)
        made.parallel_dims, made.device, made.model_config = self._dims, device, None
        made.ntokens_seen = 0
        made.train_context = get_spmd_context(parallel_dims=self._dims)
        self._loader = _Loader()
        self._validator = Validator(
            Validator.Config(steps=1),
            parallelism=parallelism,
            dp_world_size=1,
            dp_rank=0,
            tokenizer=None,
            parallel_dims=self._dims,
            loss_fn=self._loss,
            validation_context=made.train_context,
            metrics_processor=self._loader,
            seq_len=1,
            local_batch_size=training.local_batch_size,
            pp_schedule=made.pp_schedule,
            pp_has_first_stage=made.pp_has_first_stage,
            pp_has_last_stage=made.pp_has_last_stage,
        )
        self._validator.dl_config = self._loader
        self._apply = step_modules(self._modules, None)
        self._optimizers = None if plan.optimizer is None else self._stepping(plan.optimizer)
        self._manager = self._managing()

    def _stepping(self, spec: AdamStep | SgdStep) -> Any:
        """The engine's optimizers of all parts of the model on this rank."""
        from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

        name = "Adam" if isinstance(spec, AdamStep) else "SGD"
        group = ParamGroupConfig(pattern=".*", optimizer_name=name, optimizer_kwargs=asdict(spec))
        config = OptimizersContainer.Config(param_groups=[group], implementation="foreach")
        return _optimizers_class()(config, model_parts=self._trainer.model_parts)

    def _managing(self) -> Any:
        """The engine's checkpoint manager, made before the first step, as its trainer does."""
        from torchtitan.components.checkpointer import CheckpointManager

        self._trainer.step = 1
        return CheckpointManager(
            CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0, initial_load_model_only=False),
            dataloader=None,
            model_parts=self._trainer.model_parts,
            optimizers=self._optimizers,
            lr_schedulers=None,
            states={"train_state": self._trainer},
            sd_adapter=None,
        )

    def _of_microbatch(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        self._is_tuple = isinstance(output, tuple)
        leaves = output if self._is_tuple else (output,)
        added = self._variety.hand_over([one.detach() for one in leaves], self._outputs.append)
        loss = self._plan.loss.function(output, target)
        return loss if added is None else loss + added

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        given = [
            (
                {"input": one.args[0], **{name: v for own in one.kwargs.values() for name, v in own.items()}},
                one.target,
            )
            for one in batch.microbatches
        ]
        for part in self._trainer.model_parts:
            part.takes = frozenset(batch.kwargs.get(part.stage, ()))
        m = batch.num_microbatches
        self._outputs.clear()
        if mode is Mode.TRAIN:
            for part in self._trainer.model_parts:
                part.train()
            mean = self._plan.loss.reduction == "mean"
            loss = self._trainer.forward_backward_step(
                input_dict=[inputs for inputs, _ in given],
                labels=[target for _, target in given],
                global_valid_tokens=torch.tensor(m if mean else 1, device=self._plan.ranks.device),
            ).detach()
        else:
            loss = self._validated(given)
        if not self._trainer.pp_has_last_stage:
            return StepResult()
        outputs = self._outputs[-m:]  # torch calls the loss once more, to find out shapes
        self._outputs.clear()
        return StepResult(output=self._merged(outputs), loss=loss)

    def _validated(self, given: list[tuple[dict[str, Any], torch.Tensor]]) -> torch.Tensor:
        """The loss as training has it: the validator divides the sum by the number of valid labels."""
        from torchtitan.components.loss import IGNORE_INDEX

        self._loader.microbatches = given
        self._validator.validate(self._trainer.model_parts, step=1)
        self._loader.microbatches = []
        labels = sum(int((target != IGNORE_INDEX).sum()) for _, target in given)
        m = len(given) if self._plan.loss.reduction == "mean" else 1
        return torch.tensor(self._loader.loss * labels / m, dtype=torch.float64)

    def _merged(self, outputs: Sequence[Sequence[torch.Tensor]]) -> Any:
        merged = tuple(torch.cat(ones, dim=self._plan.batch_dim) for ones in zip(*outputs, strict=True))
        return merged if self._is_tuple else merged[0]

    def apply(self, operation: Operation) -> None:
        if self._optimizers is not None and isinstance(operation, OptimizerStep):
            if self._plan.clipping is not None:
                self._clipped(self._plan.clipping.max_norm, norm_type=self._plan.clipping.norm_type)
            self._optimizers.step()
        elif self._optimizers is not None and isinstance(operation, ZeroGrad):
            self._optimizers.zero_grad()
        else:
            self._apply(operation)

    def gradient_norm(self) -> torch.Tensor:
        return self._clipped(math.inf, norm_type=2.0)

    def _clipped(self, limit: float, *, norm_type: float) -> torch.Tensor:
        from torchtitan.distributed.utils import clip_grad_norm_

        norm: torch.Tensor = clip_grad_norm_(
            [p for part in self._trainer.model_parts for p in part.parameters()],
            limit,
            norm_type=norm_type,
            foreach=True,
            pp_mesh=self._dims.get_optional_mesh("pp"),
            ep_enabled=self._dims.ep_enabled,
        )
        return norm

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        self._manager.folder = str(folder)  # otherwise known from the start, from a configuration
        self._manager.save(self._trainer.step)

    def restore(self, folder: Path) -> None:
        self._manager.folder = str(folder)
        self._manager.load()

    def close(self) -> None:
        self._trainer = self._validator = self._optimizers = self._manager = None


def _at_once(leaves: Sequence[torch.Tensor], keep: Keep) -> None:
    keep(leaves)


class Torchtitan:
    """Adapter for ``torchtitan.distributed.pipeline_parallel`` and what trains and validates with it."""

    def __init__(self) -> None:
        self._meshes = Meshes()

    def describe(self) -> Description:
        """What torchtitan documents; raises `Unsupported` if it is not installed."""
        return Description(
            name="torchtitan",
            version=require_release("torchtitan", at_least=(0, 3), remedy=REMEDY),
            capabilities=CAPABILITIES,
            packages=("torchtitan.distributed.pipeline_parallel",),
            built_on="torch.distributed.pipelining",
        )

    def setup_process(self) -> None:
        """Import the engine and what it imports late, so that the first pipeline is built as fast as others."""
        for name in _IMPORTED:
            import_module(name)

    def build(self, plan: Plan) -> TitanPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipeline is not the whole world, of which the engine makes its meshes.
        """
        from torchtitan.config import CompileConfig
        from torchtitan.distributed.pipeline_parallel import pipeline_llm
        from torchtitan.trainer import Trainer

        require_whole_world(plan.ranks)
        split = functools.partial(pipeline_llm, compile_config=CompileConfig())
        return TitanPipeline(plan, self._meshes, Variety(trainer=Trainer, split=split, hand_over=_at_once))
