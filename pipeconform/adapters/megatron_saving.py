"""Checkpoints as Megatron-LM writes and reads them, in its default format ``torch_dist``, or in the older ``torch``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import Plan
from pipeconform.adapters.megatron_optimizer import MegatronSteps
from pipeconform.adapters.without_cuda import run_on

__all__ = ["DistributedCheckpoints", "OlderCheckpoints"]


class OlderCheckpoints:
    """A file for each pipeline rank, with the states of its stages and its optimizer as they are."""

    def __init__(self, plan: Plan, modules: Mapping[int, nn.Module], steps: MegatronSteps | None) -> None:
        self._plan, self._modules, self._steps = plan, modules, steps

    def save(self, folder: Path) -> None:
        """As ``save_checkpoint`` of Megatron-LM."""
        if self._plan.ranks.replica:
            return
        found: dict[str, Any] = {f"model{s}": module.state_dict() for s, module in self._modules.items()}
        if self._steps is not None:
            found["optimizer"] = self._steps.optimizer.state_dict()
        torch.save(found, self._file(folder))

    def restore(self, folder: Path) -> None:
        """As ``load_checkpoint`` of Megatron-LM."""
        self._take(torch.load(self._file(folder), map_location="cpu", weights_only=False))

    def _take(self, loaded: dict[str, Any]) -> None:
        for s, module in self._modules.items():
            module.load_state_dict(loaded[f"model{s}"])
        if self._steps is not None:
            self._steps.load(loaded["optimizer"])

    def _file(self, folder: Path) -> Path:
        return folder / f"mp_rank_00_{self._plan.ranks.pipeline_rank:03d}.pt"


class DistributedCheckpoints(OlderCheckpoints):
    """A checkpoint of all ranks of the world, by ``megatron.core.dist_checkpointing``."""

    def __init__(
        self,
        plan: Plan,
        modules: Mapping[int, nn.Module],
        steps: MegatronSteps | None,
        *,
        alone: dist.ProcessGroup,
    ) -> None:
        from megatron.core.dist_checkpointing.strategies import filesystem_async, state_dict_saver

        super().__init__(plan, modules, steps)
        run_on(plan.ranks.device, filesystem_async, state_dict_saver)
        self._alone = alone

    def save(self, folder: Path) -> None:
        from megatron.core import dist_checkpointing

        dist_checkpointing.save(self._sharded(is_loading=False), str(folder))

    def restore(self, folder: Path) -> None:
        from megatron.core import dist_checkpointing

        loaded = dist_checkpointing.load(self._sharded(is_loading=True), str(folder))
        for s in self._modules:
            named = loaded[f"model{s}"].items()
            loaded[f"model{s}"] = {name.removeprefix(_prefix(s)): value for name, value in named}
        self._take(loaded)

    def _sharded(self, *, is_loading: bool) -> dict[str, Any]:
        """As ``generate_state_dict`` of Megatron-LM."""
        from megatron.core.transformer.utils import sharded_state_dict_default

        found: dict[str, Any] = {
            f"model{s}": sharded_state_dict_default(
                module,
                _prefix(s),
                metadata={"dp_cp_group": self._plan.ranks.replica_groups.get(s, self._alone)},
                tp_group=self._alone,
            )
            for s, module in self._modules.items()
        }
        if self._steps is not None:
            found["optimizer"] = self._steps.optimizer.sharded_state_dict(found, is_loading=is_loading)
        return found


def _prefix(stage: int) -> str:
    return f"stages.{stage}."
