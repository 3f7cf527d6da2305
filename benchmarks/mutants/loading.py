"""Importing a mutant: the whole reference under a name of its own, one module of it changed.

Everything inside the reference is imported relatively, so a second copy of the package under another name is
a whole reference that shares nothing with the first: mutants do not see each other, nor the original.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from benchmarks.mutants.drawing import REFERENCE, Mutant, source_of
from benchmarks.mutants.operators import mutated

__all__ = ["adapter_of"]


def adapter_of(mutant: Mutant) -> Any:
    """The adapter class of the reference with one change made.

    Raises:
        Exception: whatever the changed module raises when it is imported.
    """
    package = f"_mutated_{mutant.name}"
    if package not in sys.modules:
        sys.meta_path.insert(0, _Finder(package, mutant))
    return importlib.import_module(f"{package}.adapter").ReferenceAdapter


class _Loader(SourceFileLoader):
    """Compiles the changed syntax tree; nothing is read from or written to a cache."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        tree = mutated(source_of(self._mutant.module), self._mutant.mutation.identity)
        code: CodeType = compile(tree, self.path, "exec")
        return code


class _Finder(MetaPathFinder):
    """Finds the copy's package and its changed module; the others are found by their path."""

    def __init__(self, package: str, mutant: Mutant) -> None:
        self._package, self._mutant = package, mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._package:
            return importlib.util.spec_from_file_location(
                fullname, REFERENCE / "__init__.py", submodule_search_locations=[str(REFERENCE)]
            )
        if fullname == f"{self._package}.{self._mutant.module}":
            file = str(REFERENCE / f"{self._mutant.module}.py")
            return importlib.util.spec_from_file_location(
                fullname, file, loader=_Loader(fullname, file, self._mutant)
            )
        return None
