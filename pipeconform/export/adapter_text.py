"""An adapter's source as part of an exported program, and what it imports from its own folder."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass, field
from modulefinder import ModuleFinder
from pathlib import Path

from pipeconform.errors import UsageError

__all__ = ["AdapterText", "adapter_text"]


@dataclass(frozen=True, kw_only=True)
class AdapterText:
    """One source file in parts."""

    docstring: str
    future: str
    """Its imports from ``__future__``, which must come first."""
    source: str
    """The rest, with relative imports made absolute, since the program is not in a package."""
    siblings: dict[str, Path] = field(default_factory=dict)
    """The files that it imports from its own folder, by their path in the archive."""


def adapter_text(where: str) -> AdapterText | None:
    """The source of a file or of one of our modules; None for other modules, which have to be installed.

    Raises:
        UsageError: there is no source.
    """
    if where.endswith(".py"):
        path = Path(where)
        return _parts(path.read_text("utf-8"), package="", siblings=_siblings(path))
    if where.partition(".")[0] != "pipeconform":
        return None
    spec = importlib.util.find_spec(where)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"{where} has no Python source that could be exported")
    return _parts(Path(spec.origin).read_text("utf-8"), package=spec.parent or "", siblings={})


def _parts(text: str, *, package: str, siblings: dict[str, Path]) -> AdapterText:
    tree, lines = ast.parse(text), text.splitlines()
    docstring, future = ast.get_docstring(tree) or "", ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and package:
            row, name = node.lineno - 1, "." * node.level + (node.module or "")
            absolute = importlib.util.resolve_name(name, package)
            lines[row] = re.sub(r"from\s+[.][.\w]*", f"from {absolute}", lines[row], count=1)
    for number, node in enumerate(tree.body):
        rows = slice(node.lineno - 1, node.end_lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future += "\n".join(lines[rows]) + "\n"
        elif number or not docstring:
            continue
        lines[rows] = [""] * len(lines[rows])
    source = "\n".join(lines).strip("\n") + "\n"
    return AdapterText(docstring=docstring, future=future, source=source, siblings=siblings)


def _siblings(path: Path) -> dict[str, Path]:
    """The modules in a file's folder that it imports, directly or indirectly; packages are taken whole."""
    folder, finder = path.parent, ModuleFinder([str(path.parent)])
    finder.run_script(str(path))
    files = (getattr(module, "__file__", None) for module in finder.modules.values())
    found = {Path(file) for file in files if file} - {path}
    packages = {one.parent for one in found if one.name == "__init__.py" and one.parents[1] == folder}
    found.update(file for package in packages for file in package.rglob("*.py"))
    return {one.relative_to(folder).as_posix(): one for one in sorted(found)}
