"""Which mutants of the product there are, and which of them a seed draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.operators import Mutation, mutations
from benchmarks.own_mutants.operators import of_the_product

__all__ = ["MODULES", "Mutant", "drawn", "modules", "path_of", "source_of"]

ROOT = Path(__file__).parents[2]
_MUTATED = (
    *("judge", "bounds", "oracle", "campaign", "gate", "certificate", "schedule", "case"),
    *("ranks.verdict", "ranks.watch", "ranks.pool"),
    *(
        f"suites.{chapter}"
        for chapter in (
            *("forward", "training", "split_backward", "schedules", "communication", "lifecycle"),
            *("data_parallel", "tracing", "errors"),
        )
    ),
)
"""Packages, and single modules: what decides which cases there are, and what is said of them."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One small mistake in one module."""

    module: str
    """As ``pipeconform.judge.forward``."""
    mutation: Mutation

    @property
    def name(self) -> str:
        """``judge.forward:1f2e3d4c``; the seed is no part of it."""
        text = f"{self.module}\n{self.mutation.identity}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.module.removeprefix('pipeconform.')}:{digest}"


def _place_of(module: str) -> Path:
    """Where a module or package stands; the suites stand beside the product's package."""
    names = module.split(".")
    return ROOT.joinpath(*(names[1:] if names[1:2] == ["suites"] else names))


def path_of(module: str) -> Path:
    """The file of a module."""
    return _place_of(module).with_suffix(".py")


def modules(within: str = "") -> tuple[str, ...]:
    """Every module that is mutated; those whose names begin with one of `within`, as ``judge.,suites.``."""
    found = []
    for name in (f"pipeconform.{name}" for name in _MUTATED):
        path = _place_of(name)
        if path.is_dir():
            parts = [file.relative_to(path).with_suffix("").parts for file in sorted(path.rglob("*.py"))]
            found += [".".join((name, *inside)) for inside in parts]
        else:
            found.append(name)
    prefixes = tuple(f"pipeconform.{one}" for one in within.split(","))
    return tuple(one for one in found if one.startswith(prefixes) and not one.endswith("__init__"))


MODULES = modules()


def source_of(module: str) -> str:
    """The module's text."""
    return path_of(module).read_text()


def drawn(*, seed: int, number: int, within: str = "") -> tuple[Mutant, ...]:
    """The first `number` mutants in the order that a seed gives."""

    def order(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}\n{mutant.name}".encode()).hexdigest()

    return tuple(sorted(_all(within), key=order)[:number])


def _all(within: str) -> Iterator[Mutant]:
    for module in modules(within):
        for mutation in mutations(source_of(module), by=of_the_product):
            yield Mutant(module=module, mutation=mutation)
