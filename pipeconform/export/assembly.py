"""Writing a program that carries what it imports as one file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from pipeconform.export.bundle import imported_by, sources_of
from pipeconform.run.implementation import resolve

__all__ = ["Assembly", "assembled", "quoted"]

_ROOT = '"""Only what this reproduction needs."""\n'

_IMPORTER = '''
class _Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules that this file carries, whatever is installed."""

    def find_spec(self, fullname, path=None, target=None):
        for name in (fullname, fullname + "."):
            if name in SOURCES:
                return importlib.util.spec_from_loader(fullname, self, is_package=name.endswith("."))
        return None

    def exec_module(self, module):
        name = module.__name__
        source = SOURCES.get(name) or SOURCES[name + "."]
        file = f"<{name}, carried by {os.path.basename(__file__)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), module.__dict__)


sys.meta_path.insert(0, _Carried())

if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What a program is made of."""

    head: Sequence[str]
    """The lines of its docstring."""
    parts: Sequence[str]
    """The modules whose text it consists of; what they import of ours at their beginning is in another of them."""
    constants: Mapping[str, str]
    """Definitions in these parts, each there once, and what is written instead."""
    carried: Iterable[str]
    """The modules that its functions import."""
    implementation: str
    """As ``--impl`` takes it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment to run it under, besides those of its reader."""


def assembled(wanted: Assembly) -> str:
    """The program's text.

    Raises:
        UsageError: the adapter, or what it imports, has no source.
    """
    where, _, name = resolve(wanted.implementation).rpartition(":")
    carried, adapter = set(wanted.carried), where
    own: dict[str, str] = {}
    if where.endswith(".py"):
        adapter = f"adapter_under_test_{hashlib.sha256(where.encode()).hexdigest()[:8]}"
        own[adapter] = Path(where).read_text("utf-8")
        carried.update(imported_by(own[adapter], adapter))
    elif where.startswith("pipeconform."):
        carried.add(where)
    sources = {
        "pipeconform.": _ROOT,
        "msgspec": (resources.files("pipeconform.export") / "plain_structs.py").read_text("utf-8"),
        **sources_of(sorted(carried)),
        **own,
    }
    body = _body(wanted.parts)
    constants = {**wanted.constants, 'ADAPTER = ""': f"ADAPTER = {f'{adapter}:{name}'!r}"}
    for constant, value in constants.items():
        assert body.count(constant) == 1, constant
        body = body.replace(constant, value)
    modules = "\n".join(f"SOURCES[{key!r}] = {quoted(text)}" for key, text in sources.items())
    # torch reads its settings when it is imported, which is the first thing that the body does
    settings = f"import os\n\nos.environ.update({dict(wanted.settings)!r})\n\n" if wanted.settings else ""
    imports = "import importlib.abc\nimport importlib.util\nimport linecache\n"
    comment = "# What the program imports: the case's modules and data, and the adapter."
    return (
        f"{_docstring(wanted.head)}\nfrom __future__ import annotations\n\n{settings}{imports}{body}\n\n{comment}\n\n"
        f"SOURCES = {{}}\n{modules}\n\n{_IMPORTER}"
    )


def _body(parts: Sequence[str]) -> str:
    """The program's own code: its parts without their docstrings and without their imports of each other."""
    bodies = []
    for part in parts:
        package, _, module = part.rpartition(".")
        text = (resources.files(package) / f"{module}.py").read_text("utf-8")
        body = text.partition("from __future__ import annotations\n")[2]
        bodies.append(re.sub(r"^from pipeconform\..*\n\n?", "", body, flags=re.MULTILINE))
    return "\n\n" + "\n\n\n".join(body.strip() for body in bodies)


def _docstring(lines: Sequence[str]) -> str:
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n'


def quoted(text: str) -> str:
    """A literal that reads like its text."""
    if "'''" in text or text.endswith(("\\", "'")) or "\\" in text or "\n" not in text:
        return repr(text) if "\n" not in text else _lines(text)
    return f"'''{text}'''"


def _lines(text: str) -> str:
    """A literal of several lines with escapes."""
    escaped = text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    return f"'''{escaped}'''" if not escaped.endswith("'") else repr(text)
