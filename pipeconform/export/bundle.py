"""The modules in an exported program's archive: those of ours that its judgement and its adapter import."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pkgutil
from collections.abc import Iterable
from pathlib import Path

from pipeconform.campaign import preload
from pipeconform.case.draw.registry import collected
from pipeconform.errors import UsageError
from pipeconform.spec.catalogue import statements

__all__ = ["absolute", "imported_by", "sources_of"]

_PACKAGE = "pipeconform"
_SUBJECTS = "pipeconform.case.draw.subjects"


def sources_of(modules: Iterable[str]) -> dict[str, Path]:
    """Source files, by their path in the archive, of `modules` and of every module of ours that they import.

    Names that the package loads lazily are not followed.

    Raises:
        UsageError: a module has no source.
    """
    found: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        path, is_package = _path(name)
        place = name.replace(".", "/")
        found[f"{place}/__init__.py" if is_package else f"{place}.py"] = path
        if is_package:
            found |= {f"{place}/{one.name}": one for one in path.parent.glob("*.toml")}
        if name == statements.__module__:  # which loads the suites by name
            waiting += statements()
        if name == preload.__name__:  # whose list a fork server imports
            waiting += filter(_is_importable, preload.PRELOAD)
        if name == collected.__module__:  # which loads the subjects by name
            waiting += (
                f"{_SUBJECTS}.{one.name}" for one in pkgutil.iter_modules([str(_path(_SUBJECTS)[0].parent)])
            )
        if name != _PACKAGE:
            waiting += _followed(name)
        waiting.append(name.rpartition(".")[0])
    return dict(sorted(found.items()))


@functools.cache
def _followed(name: str) -> tuple[str, ...]:
    """The modules of ours that a module of ours imports; cached, since each program needs hundreds."""
    path, is_package = _path(name)
    return tuple(filter(_is_importable, _imported(path.read_text("utf-8"), name, is_package=is_package)))


def imported_by(text: str, name: str) -> list[str]:
    """The modules of ours that a module `name` with the source `text` imports."""
    return sorted(set(filter(_is_importable, _imported(text, name, is_package=False))))


@functools.cache
def _is_importable(name: str) -> bool:
    """Whether a dotted name is a module of ours, and not a name inside one."""
    if name.split(".", maxsplit=1)[0] != _PACKAGE:
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not a package, so it is a name inside a module
        return False


def _path(name: str) -> tuple[Path, bool]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"{name} has no Python source that could be exported")
    return Path(spec.origin), spec.submodule_search_locations is not None


def _imported(text: str, name: str, *, is_package: bool) -> list[str]:
    """The dotted names that a module imports; ``from a import b`` gives both ``a`` and ``a.b``."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = absolute(node, name, is_package=is_package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


def absolute(node: ast.ImportFrom, name: str, *, is_package: bool = False) -> str:
    """The absolute name of the module that a (relative) import in the module `name` refers to."""
    parents = name.split(".") if is_package else name.split(".")[:-1]
    parents = parents[: len(parents) - node.level + 1]
    return ".".join([*parents, *([node.module] if node.module else [])])
