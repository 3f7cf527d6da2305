"""The modules in an exported program's archive: all of ours, so that what is loaded by name is there, too."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

__all__ = ["sources"]

_PLACES = ("pipeconform", "pipeconform.suites", "pipeconform.reference_impl")
"""Packages that may lie in different folders."""


@cache
def sources() -> MappingProxyType[str, Path]:
    """Our source files and tables, by their path in the archive."""
    found = {}
    for package in _PLACES:
        folder = Path(str(files(package)))
        for path in folder.rglob("*"):
            if path.suffix in (".py", ".toml"):
                found[f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}"] = path
    return MappingProxyType(dict(sorted(found.items())))
