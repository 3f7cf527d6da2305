"""What the pages of docs/reference on names say about each name: its signature and docstring, as Python.

A page is written by hand but for its entries, which stand between ``<!-- ::: package.name -->`` and ``<!-- end -->``.
``make standard`` fills them from the sources, so that the page reads without the site; the site (docs/hooks.py) has
mkdocstrings fill them instead.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["API_PAGES", "FOLDER", "entry", "filled", "listed"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
API_PAGES = ("adapter.md", "wrapper.md", "python.md", "schedule.md")

_ENTRY = re.compile(r"^<!-- ::: (\S+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_NOQA = re.compile(r"  # noqa.*$")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def listed(page: str) -> list[str]:
    """The names that a page has entries for."""
    return [found[1] for found in _ENTRY.finditer(page)]


def filled(page: str) -> str:
    """The page with its entries as they are now."""
    return _ENTRY.sub(lambda found: entry(found[1]), page)


def entry(path: str) -> str:
    """The entry of a name, such as ``pipeconform.adapter.Adapter``."""
    name = path.rpartition(".")[2]
    return "\n".join(
        (f"<!-- ::: {path} -->", f"### {name}", "", "```python", *_written(path), "```", "", "<!-- end -->")
    )


def _written(path: str) -> list[str]:
    """The sources of a name, without private members and the bodies of functions."""
    module, _, name = path.rpartition(".")
    home = getattr(getattr(importlib.import_module(module), name), "__module__", module)
    lines, node = _defined(home if home.startswith("pipeconform") else module, name)
    lines = [_NOQA.sub("", line) for line in lines]
    if isinstance(node, ast.ClassDef):
        return list(_class(node, lines))
    if isinstance(node, _Function):
        return list(_function(node, lines))
    return lines[node.lineno - 1 : node.end_lineno]


def _defined(module: str, name: str) -> tuple[list[str], ast.stmt]:
    """The lines of the file that defines a name, and the definition; imports are followed."""
    file = inspect.getsourcefile(importlib.import_module(module))
    assert file is not None
    lines = Path(file).read_text("utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        match node:
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name:
                return lines, node
            case ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                return lines, node
            case ast.ImportFrom(module=str(source), names=names) if name in (one.name for one in names):
                return _defined(source, name)
    raise LookupError(f"{module} neither defines nor imports {name}")


def _class(node: ast.ClassDef, lines: Sequence[str]) -> Iterator[str]:
    """The head of a class, its docstring, and its public members."""
    yield from lines[_first(node) - 1 : node.body[0].lineno - 1]
    before: ast.stmt | None = None
    for member, owner in _public(node.body):
        if before is not None and (before is node.body[0] or isinstance(owner, _Function | ast.ClassDef)):
            yield ""
        before = member
        if isinstance(member, _Function):
            yield from _function(member, lines)
        else:
            yield from lines[member.lineno - 1 : member.end_lineno]


def _public(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """The members of a class that are no one's private matter, each with the one that it documents, or itself."""
    owner = body[0]
    for member in body:
        owner = owner if _is_text(member) else member
        if not _is_private(owner):
            yield member, owner


def _function(node: _Function, lines: Sequence[str]) -> Iterator[str]:
    """The head of a function and its docstring."""
    first, indent = node.body[0], " " * (node.col_offset + 4)
    if first.lineno == node.lineno:
        yield lines[node.lineno - 1]
        return
    yield from lines[_first(node) - 1 : first.lineno - 1]
    if _is_text(first):
        yield from lines[first.lineno - 1 : first.end_lineno]
    else:
        yield f"{indent}..."


def _first(node: ast.ClassDef | _Function) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_private(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            return name.startswith("_")
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.startswith("_")
    return False
