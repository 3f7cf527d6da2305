"""picotron's pipeline behind the contract.

`PipelineParallel` takes the decoder layers of a Llama and keeps those of its rank; a step is a function that is given
this rank's part, an iterator over microbatches, and the one shape of what crosses from rank to rank. The loss is
cross-entropy of the last dimension. A step returns the mean of the losses; outputs are kept where the last stage's
projection would be. The functions and the classes around them are the engine's as they are: each stage is one of its
layers, replicas are in its `DataParallelBucket`, and its `CheckpointManager` saves.

Bent are four things. On the CPU a call that waits for the device after every message is left out. Packages that its
models and its downloads import, and that the pipeline does not use, have stand-ins. Where the engine calls torch's
cross-entropy it gets the plan's, which can raise. The grid of ranks in which the ranks of a stage follow one another is
numbered as the plan has it.

Without a pipeline the engine divides the loss of a microbatch by their number, and `Picotron` claims that it does so
with one. It does not, and most of what gradients are judged by is blocked by that: `PicotronUndivided` claims the sum
of the microbatches' gradients.

Not claimed: evaluation, which the engine does not have, and frozen parts, since it trains every parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import (
    Batch,
    BoundaryClaim,
    Capabilities,
    DataParallelClaim,
    Description,
    Feature,
    GradientScale,
    Microbatch,
    Mode,
    Operation,
    Plan,
    ScheduleClaim,
    StepResult,
    ZeroGrad,
    module_gradients,
    module_state,
    step_modules,
)
from pipeconform.adapters.installed import require_release
from pipeconform.adapters.stand_ins import standing_in_for
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.adapters.without_cuda import run_on
from pipeconform.errors import Unsupported

__all__ = ["Picotron", "PicotronUndivided"]

_CHECKOUT = (
    "git clone https://github.com/huggingface/picotron, and in the clone "
    "pip install --no-deps --config-settings editable_mode=compat -e ."
)
"""Without the setting nothing can be imported: the engine's folders have no ``__init__.py``, and none is packaged."""
_NOT_USED = (
    *("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.layers", "flash_attn.layers.rotary"),
    *("flash_attn.ops", "flash_attn.ops.triton", "flash_attn.ops.triton.layer_norm"),
    *("safetensors", "huggingface_hub"),
)
_STEPS = {"GPipe": "train_step_pipeline_afab", "1F1B": "train_step_pipeline_1f1b"}
_CAPABILITIES = Capabilities(
    schedules=(
        ScheduleClaim(name="GPipe", family="gpipe", min_ranks=2, takes_placement=False),
        ScheduleClaim(name="1F1B", family="one_f_one_b", min_ranks=2, takes_placement=False),
    ),
    features=frozenset(
        {Feature.OUTPUTS, Feature.TOKENS, Feature.ACCUMULATION, Feature.OPTIMIZER, Feature.STATE}
        | {Feature.LOADING, Feature.SAVING, Feature.SHARED_IN_STAGE, Feature.UNUSED_PARAMETERS}
        | {Feature.BUFFERS, Feature.DROPOUT, Feature.USER_HOOKS, Feature.CUSTOM_FUNCTIONS}
        | {Feature.CHECKPOINTING, Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES}
    ),
    boundary=BoundaryClaim(dtypes=("float64", "float32", "bfloat16", "float16"), min_ndim=3, differ=False),
    losses=("cross_entropy",),
    data_parallel=DataParallelClaim(),
)


class _AsItIs(nn.Module):
    """Where a model has a part that the engine resets, and a plan has none."""

    def reset_parameters(self) -> None:
        """Reset nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Layer(nn.Module):
    """A stage as a decoder layer, which the engine does not reset."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.input_layernorm = self.attention = self.post_attention_layernorm = self.mlp = _AsItIs()

    def forward(self, x: torch.Tensor, *, position_ids: torch.Tensor) -> Any:
        return self.stage(x)


class _Kept(_AsItIs):
    """Keeps what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.outputs.append(x.detach())
        return x


class _Loader:
    """The microbatches of a step in the form of the engine's data loader."""

    def __init__(self, microbatches: Sequence[Microbatch]) -> None:
        self.grad_acc_steps, self._rest = len(microbatches), iter(microbatches)

    def __next__(self) -> dict[str, Any]:
        microbatch = next(self._rest)
        (given,) = microbatch.args
        positions = torch.arange(given.shape[1], device=given.device).expand(given.shape[:2])
        return {"input_ids": given, "position_ids": positions, "target_ids": microbatch.target}


class _Losses:
    """``torch.nn.functional`` for the engine's steps, which call nothing else of it."""

    def __init__(self, plan: Plan) -> None:
        self._loss = plan.loss

    def cross_entropy(self, output: torch.Tensor, target: torch.Tensor, *, reduction: str) -> torch.Tensor:
        assert reduction == self._loss.reduction
        return self._loss.function(output, target)


class _TorchInOrder:
    """``torch`` for the engine's grid of ranks, which it makes of all ranks in order."""

    def __init__(self, plan: Plan) -> None:
        ranks, p = plan.ranks, len(plan.ranks.pipeline_ranks)
        self._ranks = torch.arange(ranks.world_size)
        if ranks.pipeline_ranks != tuple(range(ranks.replica * p, (ranks.replica + 1) * p)):
            self._ranks = self._ranks.view(p, ranks.num_replicas).t().flatten()

    def arange(self, _: int) -> torch.Tensor:
        return self._ranks


class _PicotronPipeline:
    """One rank's stage in the engine's pipeline."""

    def __init__(self, plan: Plan) -> None:
        from picotron import process_group_manager
        from picotron.checkpoint import CheckpointManager
        from picotron.data_parallel.data_parallel import DataParallelBucket
        from picotron.pipeline_parallel import pipeline_parallel, pp_communications

        if plan.schedule not in _STEPS:
            raise ValueError(f"the engine has no schedule {plan.schedule!r}")
        run_on(plan.ranks.device, pp_communications)
        ranks = plan.ranks
        process_group_manager.torch = _TorchInOrder(plan)
        process_group_manager.setup_process_group_manager(
            tp_size=1, cp_size=1, pp_size=len(ranks.pipeline_ranks), dp_size=ranks.num_replicas
        )
        self._groups = process_group_manager.process_group_manager
        pipeline_parallel.F = _Losses(plan)
        self._step = getattr(pipeline_parallel, _STEPS[plan.schedule])
        self._modules, self._kept = plan.build_owned(), _Kept()
        self._apply = step_modules(self._modules, plan.optimizer)
        parts = SimpleNamespace(
            embedding=_AsItIs(),
            decoder_layers={s: _Layer(module) for s, module in self._modules.items()},
            final_norm=_AsItIs(),
            final_proj=self._kept,
        )
        self._engine = pipeline_parallel.PipelineParallel(
            parts, SimpleNamespace(num_hidden_layers=len(plan.stages))
        )
        self._edge = plan.boundaries()[0].tensors[0]
        if ranks.num_replicas > 1:
            self._engine = DataParallelBucket(self._engine, grad_type=_gradients_of(self._edge.dtype))
        self._device, self._checkpoints = ranks.device, CheckpointManager()

    def owned(self) -> Mapping[int, nn.Module]:
        return self._modules

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        self._engine.train(mode is Mode.TRAIN)
        samples = len(batch.microbatches[0].args[0])
        loss = self._step(
            self._engine,
            _Loader(batch.microbatches),
            (samples, *self._edge.shape[1:]),
            self._device,
            self._edge.dtype,
        )
        outputs, self._kept.outputs = self._kept.outputs, []
        if not self._groups.pp_is_last_stage:
            return StepResult()
        return StepResult(output=torch.cat(outputs), loss=torch.tensor(loss, dtype=torch.float64))

    def apply(self, operation: Operation) -> None:
        self._apply(operation)
        if isinstance(operation, ZeroGrad) and self._groups.cp_dp_world_size > 1:
            self._engine.reset()

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        return module_gradients(self._modules)

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return module_state(self._modules)

    def save(self, folder: Path) -> None:
        self._checkpoints.save_checkpoint(self._engine, self._optimizer, 0, 0, str(folder))

    def restore(self, folder: Path) -> None:
        self._checkpoints.load_checkpoint(self._engine, self._optimizer, str(folder))

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, without which the engine does not save."""
        return self._apply.optimizer or torch.optim.SGD(self._engine.parameters(), lr=0.0)

    def close(self) -> None:
        """Destroy the groups that the engine made."""
        if self._engine is not None:
            kinds = ("tp", "cp", "pp", "dp", "cp_dp", "pp_dp")
            for group in {getattr(self._groups, f"{kind}_group") for kind in kinds}:
                dist.destroy_process_group(group)
        self._engine = None


class Picotron:
    """Adapter for ``picotron.pipeline_parallel``, whose gradients are to be those of the mean."""

    divides = True
    """Whether it is claimed that a loss is divided by the number of microbatches."""

    def describe(self) -> Description:
        """What the engine documents; raises `Unsupported` if it is not installed, or nothing of it can be imported."""
        release = require_release("picotron", at_least=(0, 1), remedy=_CHECKOUT)
        if find_spec("picotron") is None:
            raise Unsupported(
                f"nothing of picotron {release} can be imported as it is installed: {_CHECKOUT}"
            )
        return Description(
            name="picotron" if self.divides else "picotron-undivided",
            version=release,
            built_on="" if self.divides else "picotron",
            capabilities=replace(_CAPABILITIES, scale=GradientScale(at="loss" if self.divides else "none")),
            packages=("picotron.pipeline_parallel", "picotron.data_parallel"),
        )

    def setup_process(self) -> None:
        """Import the engine, without what its models and downloads need."""
        with standing_in_for(*_NOT_USED):
            import_module("picotron.checkpoint")

    def build(self, plan: Plan) -> _PicotronPipeline:
        """Build on this rank.

        Raises:
            Unsupported: the pipelines are not the whole world, of which the engine makes its groups.
        """
        require_whole_world(plan.ranks)
        return _PicotronPipeline(plan)


class PicotronUndivided(Picotron):
    """The same engine, whose gradients are those of the microbatches' sum."""

    divides = False


def _gradients_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients are summed and reduced: float32, unless that would round them."""
    return torch.promote_types(dtype, torch.float32)
