"""Finds what building a pipeline changed although it must not (LIF-6)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from pipeconform.adapter import Pipeline
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Case
from pipeconform.execute.randomness import moved
from pipeconform.observe.array import Array

__all__ = ["build_changes"]


def build_changes(
    case: Case, pipeline: Pipeline, rng: tuple[torch.Tensor, ...], *, device: torch.device
) -> Iterator[str]:
    """Name what building changed although it must not; `rng` is the `random_state` before."""
    if moved(rng, device):
        yield "the process's random state moved"
    if case.model.split is not None or case.world.is_parallel:
        return  # a front end makes the modules, or they are wrapped: there is nothing to compare them with
    state = pipeline.state()
    for s, live in pipeline.owned().items():
        fresh = build_stage(case, s)
        values = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        for name, value in values.items():
            shown = state.get(s, {}).get(name)
            if shown is None:
                yield f"stage {s}: state() has no {name!r}"
            elif Array.of(shown) != Array.of(value):
                yield f"stage {s}: {name} differs from its initial value"
        yield from _module_changes(s, fresh, live)


def _module_changes(s: int, fresh: nn.Module, live: nn.Module) -> Iterator[str]:
    """Compare flags, modes and hooks by name; a module that the engine wrapped shares no names and is skipped."""
    now_parameters, now_modules = dict(live.named_parameters()), dict(live.named_modules())
    for name, was in fresh.named_parameters():
        now = now_parameters.get(name)
        if now is None:
            continue
        if was.requires_grad != now.requires_grad:
            yield f"stage {s}: requires_grad of {name} became {now.requires_grad}"
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if len(getattr(now, kind, None) or ()) != len(getattr(was, kind, None) or ()):
                yield f"stage {s}: parameter {name} has other {kind.strip('_')}"
    for name, was_module in fresh.named_modules():
        now_module = now_modules.get(name)
        if now_module is None or type(now_module) is not type(was_module):
            continue
        if not now_module.training:
            yield f"stage {s}: module {name or '(itself)'} is in eval mode"
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            added = len(getattr(now_module, kind)) - len(getattr(was_module, kind))
            if added:
                yield f"stage {s}: module {name or '(itself)'} has {added:+d} {kind.strip('_')}"
