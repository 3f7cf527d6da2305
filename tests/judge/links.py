"""The links of judgements: every ``yield`` and ``yield from`` of the suites and of the functions that they call.

A judgement is a chain of generators. Which links a finding came through is read off the suspended generators, so
that nobody has to take a link out to learn whether it is needed: a link through which all findings of a requirement
about one observation came is one without which that requirement accepts the observation.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages
from types import GeneratorType, ModuleType
from typing import Any

from pipeconform import judge as judges
from pipeconform.judge.evidence import Evidence, Judge
from pipeconform.spec.catalogue import SUITES, statements

__all__ = ["Link", "all_links", "biting"]

_ELSEWHERE = (
    f"{SUITES}.data_parallel_wrappers.",
    f"{SUITES}.errors.",
    "pipeconform.judge.aftermath",
    "pipeconform.judge.misplanned",
)
"""What is judged by other evidence: tests/wrappers, tests/judge/test_aftermath.py, tests/judge/test_misplanned.py."""
MODULES = tuple(
    import_module(name)
    for name in (
        *sorted(one.name for one in walk_packages(judges.__path__, "pipeconform.judge.") if not one.ispkg),
        *statements(),
    )
    if not name.startswith(_ELSEWHERE)
)


@dataclass(frozen=True, order=True)
class Link:
    """One ``yield`` of a function: its text, and its number among those with equal text."""

    module: str
    function: str
    text: str
    ordinal: int = 0

    def __str__(self) -> str:
        number = f" ({self.ordinal + 1})" if self.ordinal else ""
        return f"{self.module}.{self.function}: {self.text}{number}"


def _links_of(module: ModuleType) -> Iterator[tuple[Link, tuple[int, int]]]:
    """Every link of a module that gives findings, with its lines."""
    name = module.__name__.rpartition(".")[2]
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef) or not _gives_findings(function):
            continue
        seen: dict[str, int] = {}
        for node in _own(function):
            if isinstance(node, ast.Yield | ast.YieldFrom) and node.value is not None:
                text = _short(node)
                ordinal = seen.get(text, 0)
                seen[text] = ordinal + 1
                yield Link(name, function.name, text, ordinal), (node.lineno, node.end_lineno or node.lineno)


def _gives_findings(function: ast.FunctionDef) -> bool:
    return function.returns is not None and "Finding" in ast.unparse(function.returns)


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function in the order of the source, those of functions inside it left out."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef):
            continue
        yield node
        waiting = [*ast.iter_child_nodes(node), *waiting]


def _short(node: ast.Yield | ast.YieldFrom) -> str:
    """``yield from f(…)``, or the kind of the finding."""
    value = node.value
    assert value is not None
    if isinstance(value, ast.Call):
        kind = next((ast.unparse(word.value) for word in value.keywords if word.arg == "kind"), None)
        text = kind if kind is not None else f"{ast.unparse(value.func)}(…)"
        if ast.unparse(value.func) == "_finding" and len(value.args) > 3:
            text = ast.unparse(value.args[3])
    else:
        text = ast.unparse(value)
    return f"{'yield from' if isinstance(node, ast.YieldFrom) else 'yield'} {text}"


_BY_FILE = {str(inspect.getsourcefile(module)): tuple(_links_of(module)) for module in MODULES}


def all_links() -> frozenset[Link]:
    """The links of all modules."""
    return frozenset(link for links in _BY_FILE.values() for link, _ in links)


def _passed(generator: Any) -> Iterator[Link]:
    """The links that the latest finding of a suspended generator came through."""
    while isinstance(generator, GeneratorType) and generator.gi_frame is not None:
        frame = generator.gi_frame
        for link, (first, last) in _BY_FILE.get(frame.f_code.co_filename, ()):
            if link.function == frame.f_code.co_name and first <= frame.f_lineno <= last:
                yield link
        generator = generator.gi_yieldfrom


def biting(judge: Judge, evidence: Evidence) -> frozenset[Link]:
    """The links without any one of which the judgement would accept this evidence."""
    generator = judge(evidence)
    found: frozenset[Link] | None = None
    for _ in generator:
        here = frozenset(_passed(generator))
        found = here if found is None else found & here
        if not found:
            break
    return found or frozenset()
