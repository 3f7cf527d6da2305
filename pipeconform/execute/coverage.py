"""Measures, with coverage.py, which lines and branches of the implementation's packages a rank executes.

What was executed is written to a file of the rank's own after every case, and whenever the controller asks what the
rank is doing, because a rank that hangs is killed. What a rank executed in a case in which it dies by itself is lost.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeconform.ranks import examiner
from pipeconform.writing import whole_file

if TYPE_CHECKING:
    import coverage

    from pipeconform.adapter import Description
    from pipeconform.wrapper import WrapperDescription

__all__ = ["SOURCES", "Sources", "data_files", "measured", "packages_of", "sources_of"]

SOURCES = "sources.json"
"""The file in the folder that says what is measured."""
_DATA = "rank-"


class Sources(msgspec.Struct, frozen=True):
    """What is measured."""

    packages: tuple[str, ...]
    files: dict[str, str]
    """Paths by name, such as ``torch/distributed/pipelining/stage.py``."""


def data_files(folder: Path) -> list[str]:
    """The files that ranks have written to a folder."""
    return sorted(str(one) for one in folder.glob(f"{_DATA}*"))


def packages_of(adapter: object, description: Description | WrapperDescription) -> tuple[str, ...]:
    """The names of the packages and modules that implement what an adapter describes."""
    return description.packages or (type(adapter).__module__,)


@contextmanager
def measured(packages: Sequence[str], *, folder: str) -> Iterator[None]:
    """Record in `folder` what this rank executes of these packages and modules; nothing if `folder` is empty."""
    if not folder:
        yield
        return
    measuring = _measuring(tuple(packages), folder)
    with examiner.keeping(measuring.save):
        try:
            yield
        finally:
            measuring.save()


@functools.cache
def _measuring(packages: tuple[str, ...], folder: str) -> coverage.Coverage:
    """What measures in this process, from now to its end: to start and stop it for each case would cost more."""
    import coverage

    sources = sources_of(packages)
    with suppress(FileExistsError), whole_file(Path(folder) / SOURCES) as part:
        part.write_bytes(msgspec.json.encode(sources))
    made = coverage.Coverage(
        data_file=f"{folder}/{_DATA}{os.getpid()}-{os.urandom(4).hex()}",
        branch=True,
        config_file=False,
        include=list(sources.files.values()),
    )
    # a case may execute nothing of a package, and a debugger may trace: both say nothing about the implementation
    made.set_option("run:disable_warnings", ["no-data-collected", "include-ignored", "trace-changed"])
    made.start()
    return made


def sources_of(packages: Sequence[str]) -> Sources:
    """The Python files of packages and modules; what Python cannot find, or has no such file, is left out."""
    files: dict[str, str] = {}
    for name in packages:
        root = name.replace(".", "/")
        for path in _paths_of(name):
            if path.is_dir():
                files |= {f"{root}/{one.relative_to(path)}": str(one) for one in sorted(path.rglob("*.py"))}
            elif path.suffix == ".py":
                files[f"{root}.py"] = str(path)
    return Sources(packages=tuple(packages), files=files)


def _paths_of(name: str) -> list[Path]:
    """A package's folders, or a module's file."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is None:
        file = getattr(module, "__file__", None)  # a file that was given by its path has no spec
        if file:
            return [Path(file)]
        with suppress(ImportError, ValueError):
            spec = find_spec(name)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(one) for one in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []
