"""Which mutants there are: the changes whose hashes are smallest.

A hash of the seed and of the change itself orders them. Nobody chooses, and a change of the reference moves
only the mutants of what it changed.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.operators import Mutation, mutations
from pipeconform import reference_impl

__all__ = ["MODULES", "REFERENCE", "SEED", "Mutant", "drawn", "mutant", "source_of"]

SEED = 0
MODULES = (
    "adapter",
    "backward",
    "capture",
    "containers",
    "front_end",
    "link",
    "metadata",
    "microbatches",
    "operations",
    "runtime",
    "stage",
    "tables",
    "tracing",
)
"""What is mutated: everything that a pipeline over several processes runs, but for replicas of stages, about
which there is no requirement yet. Schedules' tables have mutants of their own (``tests/schedule``)."""

REFERENCE = Path(reference_impl.__file__).parent
"""The reference's package."""
_DIGITS = 8


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mutated reference."""

    module: str
    mutation: Mutation

    @property
    def digest(self) -> str:
        """What orders mutants, and names them."""
        return hashlib.sha256(f"{SEED}\n{self.module}\n{self.mutation.identity}".encode()).hexdigest()

    @property
    def name(self) -> str:
        """``stage_1f2e3d4c``."""
        return f"{self.module}_{self.digest[:_DIGITS]}"

    @property
    def reference(self) -> str:
        """``module:Class``, as ``--impl`` takes it."""
        return f"{__package__}:{self.name}"


def source_of(module: str) -> str:
    """The source of one of `MODULES`."""
    return (REFERENCE / f"{module}.py").read_text()


@functools.cache
def _of_module(module: str) -> tuple[Mutant, ...]:
    return tuple(Mutant(module=module, mutation=one) for one in mutations(source_of(module)))


def drawn(count: int) -> tuple[Mutant, ...]:
    """The first `count` mutants."""
    return tuple(sorted((one for module in MODULES for one in _of_module(module)), key=_order)[:count])


def mutant(name: str) -> Mutant:
    """The mutant of that name.

    Raises:
        KeyError: there is none.
    """
    module = name.rpartition("_")[0]
    if module in MODULES:
        for one in _of_module(module):
            if one.name == name:
                return one
    raise KeyError(name)


def _order(one: Mutant) -> str:
    return one.digest
