"""Writing a stored case as one program: a reproduction that somebody without pipeconform can run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from pipeconform.case import blocks
from pipeconform.case.case import Case, Train
from pipeconform.errors import UsageError
from pipeconform.export.bundle import imported_by, sources_of
from pipeconform.report.case_text import describe_case
from pipeconform.run.implementation import resolve

__all__ = ["Reproduction", "reason_against", "script_of"]

_CARRIED = (
    "pipeconform.adapter",
    "pipeconform.case.data",
    "pipeconform.case.graph_layers",
    "pipeconform.case.modules",
    "pipeconform.case.perturbations",
    "pipeconform.case.whole",
    "pipeconform.errors",
)
_PARTS = ("comparison.py", "unpipelined.py", "program.py", "launcher.py")
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
class Reproduction:
    """What is exported."""

    name: str
    case: Case
    implementation: str
    """As ``--impl`` takes it."""
    engine: str
    """Name and version."""
    found: str
    """What was found, in words; may have several lines."""
    single_process: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment under which it was found, besides those of its reader."""


def reason_against(case: Case) -> str | None:
    """Why no program can show what a case shows, or None."""
    if case.draws_masks:
        return "its dropout masks are drawn by the ranks, and only the harness can replay them"
    if case.is_mistaken or case.world.perturbations:
        return "the harness disturbs the ranks, and a program of its own cannot"
    if case.world.tensor is not None or case.has(blocks.SyncedNorm):
        return "its stages compute over several ranks, and a program of its own does not"
    if any(isinstance(step, Train) and step.by_hand is not None for step in case.program):
        return "its stages are driven by hand, call by call"
    return None


def script_of(wanted: Reproduction) -> str:
    """The program's text.

    Raises:
        UsageError: the case cannot be shown by a program of its own, or the adapter has no source.
    """
    reason = reason_against(wanted.case)
    if reason is not None:
        raise UsageError(f"{wanted.name} cannot be exported: {reason}")
    where, _, name = resolve(wanted.implementation).rpartition(":")
    carried, adapter = set(_CARRIED), where
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
    body = _program()
    for constant, value in {
        'CASE = ""': f"CASE = {_quoted(repr(wanted.case))}",
        'ADAPTER = ""': f"ADAPTER = {f'{adapter}:{name}'!r}",
        "WORLD = 0": f"WORLD = {wanted.case.world.size}",
        "SINGLE_PROCESS = False": f"SINGLE_PROCESS = {wanted.single_process}",
        'FOUND = ""': f"FOUND = {_quoted(wanted.found)}",
    }.items():
        assert body.count(constant) == 1, constant
        body = body.replace(constant, value)
    modules = "\n".join(f"SOURCES[{key!r}] = {_quoted(text)}" for key, text in sources.items())
    # torch reads its settings when it is imported, which is the first thing that the body does
    settings = f"import os\n\nos.environ.update({dict(wanted.settings)!r})\n\n" if wanted.settings else ""
    imports = "import importlib.abc\nimport importlib.util\nimport linecache\n"
    comment = "# What the program imports: the case's model and data, and the adapter."
    return (
        f"{_head(wanted)}\nfrom __future__ import annotations\n\n{settings}{imports}{body}\n\n{comment}\n\n"
        f"SOURCES = {{}}\n{modules}\n\n{_IMPORTER}"
    )


def _program() -> str:
    """The program's own code: its parts without their docstrings and without their imports of each other."""
    bodies = []
    for part in _PARTS:
        text = (resources.files("pipeconform.export") / part).read_text("utf-8")
        body = text.partition("from __future__ import annotations\n")[2]
        bodies.append(re.sub(r"^from pipeconform\.export\..*\n\n?", "", body, flags=re.MULTILINE))
    return "".join(bodies)


def _head(wanted: Reproduction) -> str:
    lines = [
        f"{wanted.engine}: {wanted.found.splitlines()[0]}",
        "",
        "Run it with  python FILE  or  torchrun --nproc-per-node "
        f"{1 if wanted.single_process else wanted.case.world.size} FILE ; it needs torch and the engine only.",
        "Exit code 1: reproduced. It compares with the same model run without a pipeline.",
        "",
        "The case:",
        *(f"  {line}" for line in describe_case(wanted.case).splitlines()),
    ]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n'


def _quoted(text: str) -> str:
    """A literal that reads like its text."""
    if "'''" in text or text.endswith(("\\", "'")) or "\\" in text or "\n" not in text:
        return repr(text) if "\n" not in text else _lines(text)
    return f"'''{text}'''"


def _lines(text: str) -> str:
    """A literal of several lines with escapes."""
    escaped = text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    return f"'''{escaped}'''" if not escaped.endswith("'") else repr(text)
