"""The modules that an exported script carries: whatever of ours its case and its adapter import."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from pipeconform.errors import UsageError
from pipeconform.schedule import families

__all__ = ["imported_by", "sources_of"]

_PACKAGE = "pipeconform"
_ONLY_NAMES = {"pipeconform.claims": "pipeconform.schedule"}
"""What a module imports for the names of schedules only; a stand-in does unless something else imports it."""
_READERS = ("pipeconform.reading", "pipeconform.case.limits")
"""What is imported to read files of cases, which a program never does: it holds its case."""


def sources_of(modules: Iterable[str]) -> dict[str, str]:
    """The source of `modules` and of every module of ours that they import, by name; packages end in ``.``.

    Raises:
        UsageError: a module has no source.
    """
    found: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found or f"{name}." in found or name == _PACKAGE:
            continue
        path, is_package = _path(name)
        text = path.read_text("utf-8")
        found[f"{name}." if is_package else name] = text
        spared = _ONLY_NAMES.get(name)
        waiting += [
            one
            for one in _imported(text, name, is_package=is_package)
            if _is_module(one)
            and not one.startswith(_READERS)
            and (spared is None or not one.startswith(spared))
        ]
        waiting.append(name.rpartition(".")[0])
    if "pipeconform.claims" in found:
        found.setdefault("pipeconform.schedule.", _names_of_schedules())
    return dict(sorted(found.items()))


def imported_by(text: str, name: str) -> list[str]:
    """The modules of ours that a module `name` with the source `text` imports."""
    return sorted({one for one in _imported(text, name, is_package=False) if _is_module(one)} - {_PACKAGE})


def _names_of_schedules() -> str:
    names = ", ".join(repr(family.name) for family in families())
    return (
        '"""The names of schedules, which claims are checked against."""\n\nfrom types import SimpleNamespace\n\n\n'
        f"def families():\n    return [SimpleNamespace(name=name) for name in ({names})]\n"
    )


def _path(name: str) -> tuple[Path, bool]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"{name} has no source in Python that could be exported")
    return Path(spec.origin), spec.submodule_search_locations is not None


def _is_module(name: str) -> bool:
    """Whether a dotted name is a module of ours, and not something inside one."""
    if name.split(".", maxsplit=1)[0] != _PACKAGE:
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package: a name inside a module
        return False


def _imported(text: str, name: str, *, is_package: bool) -> list[str]:
    """The dotted names that a module imports, those of ``from a import b`` in both readings."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".") if is_package else name.split(".")[:-1]
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names
