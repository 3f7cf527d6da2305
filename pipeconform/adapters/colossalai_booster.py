"""What ColossalAI's booster makes of a model for its pipelines: a rank's part of it, an optimizer, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from pipeconform.adapter import Plan, optimizer_of
from pipeconform.adapters.stand_ins import standing_in_for

__all__ = ["Boosted", "import_booster"]

_NOT_USED = (
    *("peft", "peft.utils", "peft.utils.other", "peft.utils.save_and_load"),
    *("galore_torch", "bitsandbytes", "bitsandbytes.optim", "bitsandbytes.optim.optimizer"),
    *("safetensors", "safetensors.torch"),
)


def import_booster() -> None:
    """Import the plugin for pipelines, without what it imports for other optimizers, adapters and formats of files."""
    with standing_in_for(*_NOT_USED):
        # a table of dtypes, which is read when the plugin is imported
        vars(import_module("safetensors.torch")).setdefault("_TYPES", {})
        from colossalai.booster.plugin import hybrid_parallel_plugin  # noqa: F401


class _Policy:
    """What the engine asks about a model that it does not know: which parts this rank holds. Nothing is replaced."""

    def __init__(self, held: Sequence[nn.Module]) -> None:
        self._held = held

    def set_model(self, model: nn.Module) -> None:
        self._model = model

    def set_shard_config(self, config: Any) -> None:
        """Nothing depends on it."""

    def preprocess(self) -> nn.Module:
        return self._model

    def postprocess(self) -> nn.Module:
        return self._model

    def module_policy(self) -> dict[str, Any]:
        return {}

    def get_shared_params(self) -> list[Any]:
        return []

    def get_held_layers(self) -> list[nn.Module]:
        return list(self._held)


class Boosted:
    """The model, of which a rank keeps its stages, as ``Booster.boost`` wraps it with ``HybridParallelPlugin``."""

    def __init__(self, plan: Plan, stages: Sequence[nn.Module], *, manager: Any, mesh: Any) -> None:
        from colossalai.booster.plugin import hybrid_parallel_plugin as plugin
        from colossalai.checkpoint_io import HybridParallelCheckpointIO
        from colossalai.shardformer import ShardConfig

        pipeline, alone = mesh.get_group_along_axis(0), mesh.get_group_along_axis(1)
        held = [stages[s] for s in plan.owned_stages()]
        optimizer = optimizer_of((p for stage in stages for p in stage.parameters()), plan.optimizer)
        info = plugin.get_param_info(optimizer)
        self._model = plugin.HybridParallelModule(
            nn.ModuleList(stages),
            precision="fp32",  # leaves dtypes as they are
            shard_config=ShardConfig(pipeline_stage_manager=manager, enable_tensor_parallelism=False),
            dp_group=alone,
            tp_group=alone,
            sp_group=alone,
            use_ddp=False,
            ddp_config={},
            custom_policy=_Policy(held),
        )
        self.optimizer: Any = None
        """None if the plan has none, or nothing requires a gradient."""
        if optimizer is not None:
            self.optimizer = plugin.HybridParallelNaiveOptimizer(
                optimizer, self._model, use_pipeline=True, param_info=info
            )
        self._files = HybridParallelCheckpointIO(alone, pipeline, alone, alone, zero_stage=0)

    def save(self, folder: Path) -> None:
        """Do what ``Booster.save_model`` and ``save_optimizer`` do."""
        self._files.save_model(self._model, str(folder / "model"), shard=True)
        if self.optimizer is not None:
            self._files.save_optimizer(self.optimizer, str(folder / "optimizer"), shard=True)

    def restore(self, folder: Path) -> None:
        """Do what ``Booster.load_model`` and ``load_optimizer`` do."""
        self._files.load_model(self._model, str(folder / "model"))
        if self.optimizer is not None:
            self._files.load_optimizer(self.optimizer, str(folder / "optimizer"))
