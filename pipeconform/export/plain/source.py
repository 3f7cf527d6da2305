"""Python text from templates: the pieces that a program uses, its imports, and long lines broken as ruff breaks them.

Templates are Jinja's, and a line that ends with ``#: condition`` is there only where the condition holds.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise

from jinja2 import Environment, StrictUndefined, Template, pass_context
from jinja2.runtime import Context

__all__ = ["docstring", "imports_of", "pieces_of", "rendered", "tidy"]

WIDTH = 110
_PIECES = ("blocks", "harness", "watched", "by_hand", "parallel")


def rendered(template: str, facts: Mapping[str, object]) -> str:
    """The text of one of our templates."""
    return _template(template).render(facts).strip("\n")


@cache
def _template(name: str) -> Template:
    made = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)  # noqa: S701 - no markup
    made.filters.update(kind=lambda one: type(one).__name__, as_run=_as_run, docstring=docstring)
    text = files(__package__).joinpath("templates", f"{name}.jinja").read_text("utf-8")
    return made.from_string(
        re.sub(r"^(.*?)  #: (.+)\n", r"{% if \2 +%}\1\n{% endif +%}", text, flags=re.MULTILINE)
    )


def docstring(text: str) -> str:
    """A text as a docstring."""
    quoted = text.strip("\n").replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{quoted}\n"""'


@pass_context
def _as_run(facts: Context, body: str) -> str:
    """The body of a run: a function that `program` calls, or inline in a program of one step."""
    seen, keeps = facts["aspect"].seen, facts["aspect"].keeps
    if facts["several"]:
        inside = "\n".join(f"        {line}" for line in body.splitlines())
        called = f"    {'return ' if keeps else ''}program(stages, run)"
        return f"\n    def run(step{', training' if facts['mixed'] else ''}):\n{inside}\n\n{called}\n"
    body = re.sub(r"^( *return )(.+)$", r"\1[\2]", body.replace("batch(step", "batch(0"), flags=re.MULTILINE)
    lines = [*body.splitlines(), *([f"return [{seen}]"] if seen else [])]
    return "".join(f"    {line}\n" for line in lines)


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def pieces_of(text: str, facts: Mapping[str, object]) -> list[str]:
    """The classes, then the functions, that `text` uses, directly or through others."""
    every = [piece for name in _PIECES for piece in rendered(name, facts).split("\n\n\n")]
    known = {re.split(r"\W+", piece, maxsplit=2)[1]: piece for piece in every}
    found: set[str] = set()
    waiting = _names(text)
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found.add(name)
            waiting |= _names(known[name])
    return sorted((known[name] for name in known if name in found), key=lambda one: one.startswith("def "))


def imports_of(text: str, facts: Mapping[str, object]) -> str:
    """The import statements that `text` needs; each line binds the last name in it."""
    used = {"", *_names(text)}
    lines = rendered("imports", facts).splitlines()
    return "\n".join(line for line in lines if line.rpartition(" ")[2] in used)


def tidy(text: str) -> str:
    """The text with long lines broken, and at most two blank lines in a row."""
    broken = "\n".join(row for line in text.splitlines() for row in _broken(line.rstrip()))
    return re.sub(r"\n{4,}", "\n\n\n", broken)


def _broken(line: str) -> Iterator[str]:
    """A line; if it is too long, what its longest brackets hold stands on lines of its own."""
    if len(line) <= WIDTH:
        yield line
        return
    depth, pairs, splits, start = 0, [], [], 0
    for token in tokenize.generate_tokens(io.StringIO(line).readline):
        where = token.start[1]
        depth -= token.string in tuple(")]}")
        if not depth and token.string in tuple(")]}"):
            pairs.append((where - start, start, where))
        if not depth and token.string in tuple("([{"):
            start = where + 1
        splits += [(where, token.string)] if depth == 1 and token.string in (",", "for") else []
        depth += token.string in tuple("([{")
    if not pairs:
        yield line
        return
    _, start, end = max(pairs)
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    inside = [(at, what) for at, what in splits if start <= at < end]
    loop = next((at for at, what in inside if what == "for"), None)
    yield line[:start]
    if loop is not None:
        whole = f"{indent}{line[start:end]}"
        each = [whole] if len(whole) <= WIDTH else [indent + line[start : loop - 1], indent + line[loop:end]]
    else:
        cuts = [start - 1, *(at for at, _ in inside), end]
        each = [f"{indent}{line[a + 1 : b].strip()}," for a, b in pairwise(cuts)]
    for one in each:
        yield from _broken(one)
    yield indent[4:] + line[end:]
