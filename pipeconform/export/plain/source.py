"""Python text: copied pieces with what they use, imports, and calls broken into lines as ruff breaks them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType

from pipeconform.export.plain.pieces import blocks, by_hand, harness, parallel, watched

__all__ = ["WIDTH", "call", "imports_of", "pieces_of"]

WIDTH = 110
_PIECES = (blocks, harness, watched, by_hand, parallel)


@cache
def _pieces() -> Mapping[str, str]:
    """The source of every piece, by its name, in the order in which programs have them."""
    found = {}
    for module in _PIECES:
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = inspect.getsource(getattr(module, node.name)).rstrip()
    return found


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


@cache
def _imports() -> Mapping[str, str]:
    """The import statements of the pieces, by the name that each binds."""
    found = {}
    for module in _PIECES:
        for node in _tree(module).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for one in node.names:
                    text = ast.unparse(
                        ast.Import([one])
                        if isinstance(node, ast.Import)
                        else ast.ImportFrom(node.module, [one], 0)
                    )
                    found[one.asname or one.name.partition(".")[0]] = text
    return found


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def pieces_of(text: str, changes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The pieces that `text` uses, directly or through others, in order.

    `changes` maps the name of a piece to replacements in its text; each must be there.
    """
    found: dict[str, str] = {}
    waiting = _names(text)
    while waiting:
        name = waiting.pop()
        if name in found or name not in _pieces():
            continue
        source = _pieces()[name]
        for old, new in changes.get(name, {}).items():
            assert old in source, f"{name} has no {old!r}"
            source = source.replace(old, new)
        found[name] = source
        waiting |= _names(source)
    return [found[name] for name in _pieces() if name in found]


def imports_of(text: str, more: Mapping[str, str]) -> str:
    """The import statements that `text` needs, sorted as isort does; `more` has statements by the name they bind."""
    known = {**_imports(), **more}
    used = _names(text) & known.keys()
    first: list[str] = []
    plain: set[str] = set()
    grouped: dict[str, set[str]] = {}
    for name in used:
        node = ast.parse(known[name]).body[0]
        if isinstance(node, ast.ImportFrom):
            grouped.setdefault(node.module or "", set()).update(ast.unparse(one) for one in node.names)
        else:
            plain.add(known[name])
    for ours in (False, True):
        lines = sorted(one for one in plain if one.startswith("import torch") is ours)
        for module in sorted(one for one in grouped if one.startswith("torch") is ours):
            names = sorted(grouped[module], key=lambda one: (not one[0].isupper(), one))
            lines.append(call(f"from {module} import ", names, ends=("", ""), broken=("(", ")")))
        first += ["\n".join(lines)] if lines else []
    return "\n\n".join(first)


def call(
    before: str,
    arguments: Iterable[str],
    *,
    ends: tuple[str, str] = ("(", ")"),
    broken: tuple[str, str] | None = None,
    indent: int = 0,
    after: str = "",
) -> str:
    """A call (or list, or import) on one line, or with its arguments on lines of their own where it is too long."""
    items = list(arguments)
    short = f"{before}{ends[0]}{', '.join(items)}{ends[1]}{after}"
    if indent + len(short) <= WIDTH and "\n" not in short:
        return " " * indent + short
    opened, closed = broken or ends
    space, inner = " " * indent, " " * (indent + 4)
    return "\n".join(
        (f"{space}{before}{opened}", *(f"{inner}{one}," for one in items), f"{space}{closed}{after}")
    )
