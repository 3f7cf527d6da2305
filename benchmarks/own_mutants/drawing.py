"""Which mutants of the product there are, and which of them a seed draws."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.operators import Mutation, mutations
from benchmarks.own_mutants.operators import of_the_product

__all__ = ["MODULES", "Mutant", "drawn", "modules", "place_of", "reaching", "source_of"]

ROOT = Path(__file__).parents[2]
_REACH = Path(__file__).with_name("reach.toml")


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


@functools.cache
def _reach() -> Mapping[str, tuple[str, ...]]:
    """By module, or package with a dot behind it, the test files that reach it, cheapest first."""
    return {name: tuple(files) for name, files in tomllib.loads(_REACH.read_text()).items()}


def place_of(module: str) -> Path:
    """Where a module or package stands; the suites stand beside the product's package."""
    names = module.split(".")
    return ROOT.joinpath(*(names[1:] if names[1:2] == ["suites"] else names))


def modules(within: str = "") -> tuple[str, ...]:
    """Every module that is mutated; those whose name begins with `within`, as ``judge``."""
    found = []
    for name in _reach():
        path = place_of(name)
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        parts = [file.relative_to(path).with_suffix("").parts for file in files] if path.is_dir() else [()]
        found += [".".join((name, *inside)) for inside in parts]
    prefix = f"pipeconform.{within}"
    wanted = (one for one in found if one.startswith(prefix) and not one.endswith("__init__"))
    return tuple(dict.fromkeys(wanted))


MODULES = modules()


def source_of(module: str) -> str:
    """The module's text."""
    return place_of(module).with_suffix(".py").read_text()


def reaching(module: str) -> tuple[str, ...]:
    """The test files that reach a module: the one that mirrors it, then those of the stored map."""
    *folders, name = module.split(".")[1:]
    mirror = "/".join(("tests", *folders, f"test_{name}.py"))
    known = _reach().get(module) or next(
        files for package, files in _reach().items() if module.startswith(f"{package}.")
    )
    return tuple(dict.fromkeys([*([mirror] if (ROOT / mirror).exists() else []), *known]))


def drawn(*, seed: int, number: int, within: str = "") -> tuple[Mutant, ...]:
    """The first `number` mutants in the order that a seed gives."""

    def order(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}\n{mutant.name}".encode()).hexdigest()

    return tuple(sorted(_all(within), key=order)[:number])


def _all(within: str) -> Iterator[Mutant]:
    for module in modules(within):
        for mutation in mutations(source_of(module), by=of_the_product):
            yield Mutant(module=module, mutation=mutation)
