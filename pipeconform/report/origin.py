"""Where in a project's files a violation comes from, for annotations and links to lines.

That is the innermost frame inside the project of what raised or hung; without one, where the adapter is defined.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeconform.errors import UsageError
from pipeconform.execute.implementation import resolve
from pipeconform.report.result import Violation

__all__ = ["Origin", "Origins"]

_CHAIN = re.compile(r"^ranks? [\d, ]+ raised at\n((?:  .*\n?)+)", re.MULTILINE)
_FRAME = re.compile(r"^  (?! )(.+\.py), line (\d+), in ", re.MULTILINE)
_STACK = re.compile(r'File "([^"]+\.py)", line (\d+)')
_MOST_FILES = 50_000  # of a project; frames in others are not found
_NOT_A_PROJECT_S = {"node_modules", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A line of a file."""

    file: str
    """Relative to the project's folder, with forward slashes."""
    line: int


class Origins:
    """Finds origins for the implementation called `reference`, in the project in the folder `root`.

    Nothing is imported; files are only read.
    """

    def __init__(self, reference: str, *, root: Path) -> None:
        self._reference, self._root = reference, root.resolve()

    def of(self, violation: Violation) -> Origin | None:
        """The innermost frame inside the project of what raised or hung, or `adapter`."""
        return next(self._frames(violation), self.adapter)

    @functools.cached_property
    def adapter(self) -> Origin | None:
        """Where the adapter is defined; None if that is unknown or outside the project."""
        try:
            where, _, name = resolve(self._reference).rpartition(":")
        except UsageError:
            return None
        path = Path(where) if where.endswith(".py") else _file_of_module(where)
        return None if path is None else self._inside(path, _line_of(path, name))

    def _frames(self, violation: Violation) -> Iterator[Origin]:
        """Frames inside the project, the innermost of each rank first."""
        for chain in _CHAIN.findall(violation.message):
            for short, line in reversed(_FRAME.findall(chain)):
                path = self._files.get(short)
                if path is not None:
                    yield Origin(file=path, line=int(line))
        for place in violation.places:
            for file, line in _STACK.findall(place.stack):  # the most recent call comes first
                found = self._inside(Path(file), int(line))
                if found is not None:
                    yield found

    def _inside(self, path: Path, line: int) -> Origin | None:
        try:
            file = path.resolve().relative_to(self._root)
        except (ValueError, OSError):
            return None
        installed = _NOT_A_PROJECT_S & set(file.parts) or any(part.startswith(".") for part in file.parts)
        return None if installed else Origin(file=file.as_posix(), line=line)

    @functools.cached_property
    def _files(self) -> Mapping[str, str]:
        """The project's modules by folder and name, as messages name them; names that two files share are left out."""
        found: dict[str, str] = {}
        twice: set[str] = set()
        for number, path in enumerate(_modules(self._root)):
            if number >= _MOST_FILES:
                break
            short = f"{path.parent.name}/{path.name}"
            if short in found:
                twice.add(short)
            found[short] = path.relative_to(self._root).as_posix()
        return {short: path for short, path in found.items() if short not in twice}


def _modules(root: Path) -> Iterator[Path]:
    """Python files below a folder, without hidden folders, installed packages and environments."""
    for folder, below, files in os.walk(root):
        below[:] = sorted(
            name
            for name in below
            if not name.startswith(".")
            and name not in _NOT_A_PROJECT_S
            and not Path(folder, name, "pyvenv.cfg").exists()
        )
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _file_of_module(name: str) -> Path | None:
    """The file of a module, without importing it."""
    top, *rest = name.split(".")
    if top == __name__.partition(".")[0]:  # is imported already, and its parts may come from other folders
        spec = importlib.util.find_spec(name)
        return None if spec is None or spec.origin is None else Path(spec.origin)
    for entry in (".", *sys.path):
        base = Path(entry, top, *rest)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def _line_of(path: Path, name: str) -> int:
    """The line on which a file defines `name` at its top level; 1 if it does not."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return 1
    for one in body:
        if name == getattr(one, "name", None):
            return one.lineno
        targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return one.lineno
    return 1
