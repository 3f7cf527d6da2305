"""The reference stays what it is meant to be: short modules that import little."""

from __future__ import annotations

import ast
from pathlib import Path

import pipeconform.reference_impl
import pytest

HERE = Path(pipeconform.reference_impl.__file__).parent
MODULES = sorted(HERE.rglob("*.py"))
ALLOWED = (
    "torch",
    "pipeconform.adapter",
    "pipeconform.sharding",
    "pipeconform.stage_wrapping",
    "pipeconform.wrapper",
    "pipeconform.schedule",
    "pipeconform.errors",
)
STANDARD = {
    "__future__",
    "ast",
    "collections",
    "contextlib",
    "contextvars",
    "copy",
    "dataclasses",
    "difflib",
    "operator",
    "functools",
    "hashlib",
    "importlib",
    "inspect",
    "itertools",
    "json",
    "math",
    "os",
    "pathlib",
    "pickle",
    "pkgutil",
    "struct",
    "sys",
    "tempfile",
    "threading",
    "time",
    "typing",
    "types",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_module_is_short_and_imports_little(path: Path) -> None:
    text = path.read_text()
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    foreign = {
        n
        for n in found
        if n.split(".")[0] not in STANDARD and not any((n + ".").startswith(a + ".") for a in ALLOWED)
    }

    assert not foreign
    assert "torch.distributed.pipelining" not in text
    assert len(text.splitlines()) < 400
