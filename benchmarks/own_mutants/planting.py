"""A mutant in the place of what is already imported, and of what is imported later.

In a process that is forked for it, functions get the code of the mutant's; so neither torch, nor the product, nor the
tests are imported for each. What is computed while a module is imported remains as it was: `plant` says whether the
mutant can be had in this way.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, FunctionType, ModuleType

from benchmarks.mutants.operators import mutated
from benchmarks.own_mutants.drawing import MODULES, Mutant, path_of, source_of
from benchmarks.own_mutants.operators import of_the_product

__all__ = ["Finder", "living", "plant"]


def living() -> Mapping[str, tuple[FunctionType, ...]]:
    """By file, the functions of the mutated modules that exist."""
    gc.unfreeze()  # the tests' conftest keeps the garbage collector away from what is imported
    files: dict[str, list[FunctionType]] = {str(path_of(module)): [] for module in MODULES}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename in files:
            files[one.__code__.co_filename].append(one)
    return {file: tuple(functions) for file, functions in files.items()}


def plant(mutant: Mutant, functions: Mapping[str, Sequence[FunctionType]]) -> bool:
    """Give every function the mutant's code; False if that does not bring the mutant about."""
    sys.meta_path.insert(0, Finder(mutant))
    if mutant.module not in sys.modules:
        return True
    codes = {_place(code): code for code in _codes(_compiled(mutant))}
    changed = False
    for function in functions[str(path_of(mutant.module))]:
        old = function.__code__
        new = codes.get(_place(old))
        if new is None or new == old:
            continue
        if new.co_freevars != old.co_freevars:
            return False
        function.__code__ = new
        changed = True
    return changed


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _compiled(mutant: Mutant) -> CodeType:
    tree = mutated(source_of(mutant.module), mutant.mutation.identity, by=of_the_product)
    code: CodeType = compile(tree, str(path_of(mutant.module)), "exec")
    return code


class Finder(MetaPathFinder):
    """Finds the mutant in the place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The mutant's module, and nothing for other names."""
        if fullname != self._mutant.module:
            return None
        file = str(path_of(fullname))
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(fullname, file, self._mutant)
        )


class _Loader(SourceFileLoader):
    """Compiles the changed syntax tree."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(self._mutant)
