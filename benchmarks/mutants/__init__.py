"""Mutants of the reference: one small syntactic change each, made by rule and drawn by a hash, none by hand.

``benchmarks.mutants:NAME`` is what ``--impl`` takes. `operators` says what is changed, `drawing`
which changes are taken, `loading` imports a whole reference of its own around the changed module.
"""

from __future__ import annotations

from typing import Any

from benchmarks.mutants.drawing import MODULES, SEED, Mutant, drawn, mutant
from benchmarks.mutants.loading import adapter_of

__all__ = ["MODULES", "SEED", "Mutant", "drawn", "mutant"]


def __getattr__(name: str) -> Any:
    """The adapter class of a mutant, by the mutant's name."""
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return adapter_of(mutant(name))
    except KeyError as unknown:
        raise AttributeError(name) from unknown
