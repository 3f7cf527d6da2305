"""Finds what building a pipeline changed although it must not (LIF-6)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pipeconform.adapter import Pipeline
from pipeconform.case.case import Case
from pipeconform.execute.initial import Initials
from pipeconform.execute.randomness import moved
from pipeconform.observe.array import Array

__all__ = ["build_changes"]


def build_changes(
    case: Case,
    pipeline: Pipeline,
    initials: Initials,
    rng: tuple[torch.Tensor, ...],
    *,
    device: torch.device,
) -> Iterator[str]:
    """Name what building changed although it must not; `rng` is the `random_state` before."""
    if moved(rng, device):
        yield "the process's random state moved"
    if case.model.split is not None or case.world.is_parallel:
        return  # a front end makes the modules, or they are wrapped: there is nothing to compare them with
    state = pipeline.state()
    for s, live in pipeline.owned().items():
        initial = initials.of(s)
        for name, value in initial.values.items():
            shown = state.get(s, {}).get(name)
            if shown is None:
                yield f"stage {s}: state() has no {name!r}"
            elif Array.of(shown) != value:
                yield f"stage {s}: {name} differs from its initial value"
        for change in initial.changes(live):
            yield f"stage {s}: {change}"
