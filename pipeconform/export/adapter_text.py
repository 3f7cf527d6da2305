"""An adapter's source as part of an exported program, and what it imports from its own folder."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeconform.errors import UsageError
from pipeconform.export.bundle import absolute

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
        return _parts(path.read_text("utf-8"), name="adapter", folder=path.parent)
    if where.split(".", maxsplit=1)[0] != "pipeconform":
        return None
    spec = importlib.util.find_spec(where)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"{where} has no Python source that could be exported")
    return _parts(Path(spec.origin).read_text("utf-8"), name=where, folder=None)


def _parts(text: str, *, name: str, folder: Path | None) -> AdapterText:
    tree, lines = ast.parse(text), text.splitlines()
    docstring, future = ast.get_docstring(tree) or "", []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and folder is None:
            row = node.lineno - 1
            lines[row] = re.sub(r"from\s+[.][.\w]*", f"from {absolute(node, name)}", lines[row], count=1)
    taken: set[int] = set()
    for number, node in enumerate(tree.body):
        rows = range(node.lineno - 1, node.end_lineno or node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future.append("\n".join(lines[row] for row in rows) + "\n")
            taken.update(rows)
        elif number == 0 and docstring:
            taken.update(rows)
    rest = "\n".join(line for row, line in enumerate(lines) if row not in taken)
    return AdapterText(
        docstring=docstring,
        future="".join(future),
        source=rest.strip("\n") + "\n",
        siblings={} if folder is None else dict(_siblings(text, folder, set())),
    )


def _siblings(text: str, folder: Path, seen: set[str]) -> Iterator[tuple[str, Path]]:
    """The modules and packages in a file's folder that it imports, directly or indirectly."""
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for first in {one.split(".", maxsplit=1)[0] for one in names} - seen:
            seen.add(first)
            module, package = folder / f"{first}.py", folder / first
            found = [module] if module.is_file() else []
            if (package / "__init__.py").is_file():
                found = sorted(package.rglob("*.py"))
            for path in found:
                yield path.relative_to(folder).as_posix(), path
                yield from _siblings(path.read_text("utf-8"), folder, seen)
