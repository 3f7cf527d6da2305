"""A task for a rank process: which files an implementation consists of besides its adapter, and their digest.

An adapter is a few dozen lines; the engine behind it is what is judged. Everything that the adapter's file imports,
anywhere in it, is looked up: a package that a distribution installed is named with that distribution, whose files are
those of its RECORD; anything else is a tree of files, whose own imports are followed in turn. Imports by
computed names, and imports of a distribution, are not followed, except that files outside the installed ones count if
they are loaded when the adapter describes itself.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

import msgspec

from pipeconform.execute.implementation import load
from pipeconform.execute.source import file_of

if TYPE_CHECKING:
    from pipeconform.ranks.rank import RankContext

__all__ = ["Component", "answer", "components_of", "digest_of_distribution", "digest_of_tree"]

_OURS = "pipeconform"
_IMPLEMENTATIONS = ("adapters", "reference_impl")
"""The parts of pipeconform that are judged: all others judge."""
_ADAPTERS = "pipeconform.adapters"
_ALWAYS = "torch"
_LARGE = 32 << 20
"""Bytes: of a larger installed file the digest in its RECORD counts, and its present size."""
_MOST_FILES = 100_000
_OWN_TO_A_MACHINE = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution, or a tree of files that none installed, and its contents."""

    name: str
    version: str = ""
    """The distribution's."""
    kind: Literal["distribution", "tree"]
    files: int
    digest: str
    """The SHA-256 over the names and contents of its files, in hexadecimal digits."""


def answer(_context: RankContext, reference: bytes) -> bytes:
    """The components of the adapter called `reference`, as MessagePack."""
    before = set(sys.modules)
    adapter = load(reference.decode())
    adapter.describe()
    kind = type(adapter)
    path = file_of(kind)
    loaded = sorted(set(sys.modules) - before)
    found = components_of(path, package=kind.__module__.rpartition(".")[0], loaded=loaded)
    return msgspec.msgpack.encode(found)


def components_of(
    path: Path | None, *, package: str = "", loaded: Iterable[str] = ()
) -> tuple[Component, ...]:
    """The imports of the Python file `path`, a module of `package`, as components by name; and torch, always.

    Of the modules `loaded`, only those that no distribution installed count.
    """
    owners = metadata.packages_distributions()
    local = [name for name in loaded if name.partition(".")[0] not in owners and not _is_pythons(name)]
    todo = [_ALWAYS, *local, *(() if path is None else _imported(path, package))]
    found: dict[str, Component] = {}
    seen: set[str] = set()
    while todo:
        name = _unit(todo.pop())
        if name is None or name in seen:
            continue
        seen.add(name)
        where = _place(name)
        if where is None:
            continue
        installed = [one for one in dict.fromkeys(owners.get(name, ())) if _installs(one, where)]
        for one in installed:
            found[one] = digest_of_distribution(metadata.distribution(one))
        if not installed:
            found[name] = digest_of_tree(name, where)
            for file in _followed(name, where):
                todo += _imported(file, _package_of(name, where, file))
    return tuple(found[name] for name in sorted(found))


def _followed(name: str, where: Path) -> list[Path]:
    """The files whose imports count; of pipeconform's adapters only one is judged, and its imports count already."""
    if name == _ADAPTERS:
        return []
    return [where] if where.is_file() else sorted(where.rglob("*.py"))


def digest_of_distribution(one: metadata.Distribution) -> Component:
    """The digest of a distribution's files as they are now, without compiled and generated ones."""
    whole, number = hashlib.sha256(), 0
    for file in sorted(one.files or (), key=str):
        if file.parts[0] == ".." or file.name in _OWN_TO_A_MACHINE or _is_compiled(file):
            continue
        path = Path(str(one.locate_file(file)))
        noted = "missing"
        if path.is_file():
            size = path.stat().st_size
            large = size > _LARGE and file.hash is not None
            noted = f"{file.hash.value} {size}" if large and file.hash else _sha256(path)
        whole.update(f"{file} {noted}\n".encode())
        number += 1
    return Component(
        name=one.metadata["Name"],
        version=one.version,
        kind="distribution",
        files=number,
        digest=whole.hexdigest(),
    )


def digest_of_tree(name: str, where: Path) -> Component:
    """The digest of a folder's files, or of one file."""
    whole, number = hashlib.sha256(), 0
    for path in [where] if where.is_file() else sorted(where.rglob("*")):
        inside = PurePosixPath(path.name) if path == where else path.relative_to(where)
        if not path.is_file() or _is_compiled(inside) or any(part[0] == "." for part in inside.parts):
            continue
        whole.update(f"{inside.as_posix()} {_sha256(path)}\n".encode())
        number += 1
        if number > _MOST_FILES:
            raise OSError(f"more than {_MOST_FILES} files in the package {name}")
    return Component(name=name, kind="tree", files=number, digest=whole.hexdigest())


def _imported(path: Path, package: str) -> list[str]:
    """The dotted names that a file imports, anywhere in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def _unit(name: str) -> str | None:
    """The component that a dotted name belongs to; None for Python's own modules, and for what judges."""
    first, *others = name.split(".")
    if not first or first in sys.stdlib_module_names or first.startswith("_pipeconform_impl_"):
        return None
    if first == _OURS:
        return f"{_OURS}.{others[0]}" if others and others[0] in _IMPLEMENTATIONS else None
    return first


def _place(name: str) -> Path | None:
    """The folder or the file of a package or module; None if there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        if Path(folder).is_dir():
            return Path(folder)
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def _installs(name: str, where: Path) -> bool:
    """Whether a distribution put this there; one installed in editable mode did not."""
    one = metadata.distribution(name)
    root = Path(str(one.locate_file("")))
    return where.is_relative_to(root) and any(
        Path(str(one.locate_file(file))).is_relative_to(where) for file in one.files or ()
    )


def _is_pythons(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return not file or Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])


def _package_of(name: str, where: Path, file: Path) -> str:
    """The package of a file in a tree: the one it is a module of, or is."""
    if file == where:
        return name.rpartition(".")[0]
    return ".".join([name, *file.relative_to(where).parent.parts])


def _is_compiled(path: PurePosixPath | Path) -> bool:
    return "__pycache__" in path.parts or path.suffix == ".pyc"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
