"""Saving and restoring a rank's stages and their optimizer with torch.distributed.checkpoint.

Pipelining has no calls of its own for it. torch's documentation has one way for trainings on several ranks: state dicts
from `get_state_dict`, in which optimizer states have the names of parameters, written and read by all ranks together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["restore", "save"]


def save(
    modules: Mapping[int, nn.Module],
    optimizer: torch.optim.Optimizer | None,
    folder: Path,
    group: dist.ProcessGroup | None,
) -> None:
    """Write stages and optimizer states into `folder`; collective over `group`."""
    from torch.distributed.checkpoint.state_dict_saver import save

    save(_state_of(_by_stage(modules), optimizer), checkpoint_id=folder, process_group=group)


def restore(
    modules: Mapping[int, nn.Module],
    optimizer: torch.optim.Optimizer | None,
    folder: Path,
    group: dist.ProcessGroup | None,
) -> None:
    """Read them from there; collective over `group`."""
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    whole = _by_stage(modules)
    state = _state_of(whole, optimizer)
    load(state, checkpoint_id=folder, process_group=group)
    set_state_dict(
        whole,
        [] if optimizer is None else optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_options(),
    )


def _options() -> Any:
    """Options and states have the names of parameters: groups have numbers, which are the same on all ranks."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=True)


def _by_stage(modules: Mapping[int, nn.Module]) -> nn.ModuleDict:
    """One module, so that no two stages have the same names."""
    return nn.ModuleDict({str(s): module for s, module in modules.items()})


def _state_of(whole: nn.ModuleDict, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, of_optimizer = get_state_dict(whole, [] if optimizer is None else optimizer, options=_options())
    return {"model": model, "optimizer": of_optimizer}
