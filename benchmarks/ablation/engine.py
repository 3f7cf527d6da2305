"""A fault that does not claim one thing: ``benchmarks.ablation.engine:CLAIM__MODULE__CLASS`` makes its adapter."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from benchmarks.ablation.claims import without
from pipeconform.adapter import Description

_FAULTS = "pipeconform.reference_impl.faults"


def reference_without(reference: str, claim: str) -> str:
    """What ``--impl`` takes for the fault at `reference` without a claim."""
    module, _, name = reference.removeprefix(f"{_FAULTS}.").partition(":")
    return f"{__name__}:{claim}__{module}__{name}"


def __getattr__(name: str) -> Any:
    claim, _, rest = name.partition("__")
    module, _, fault = rest.partition("__")
    if not fault:
        raise AttributeError(name)
    base = getattr(importlib.import_module(f"{_FAULTS}.{module}"), fault)

    class Silent(base):  # type: ignore[misc]  # whatever class the fault is
        def describe(self) -> Description:
            told: Description = super().describe()
            return dataclasses.replace(told, capabilities=without(told.capabilities, claim))

    Silent.__name__ = Silent.__qualname__ = name
    return Silent
