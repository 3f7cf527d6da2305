"""Finds the installed release of an engine without importing it."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pipeconform.errors import Unsupported

__all__ = ["has_file", "require_release"]


def require_release(
    distribution: str, *, at_least: tuple[int, int], extra: str = "", remedy: str = ""
) -> str:
    """The installed release of `distribution`, which comes with the `extra` of that name, or by another `remedy`.

    Raises:
        Unsupported: there is none, or it is older than `at_least`; the message says how to get one.
    """
    wanted = f"{distribution}>={'.'.join(map(str, at_least))}"
    remedy = remedy or f"pip install 'pipeconform[{extra}]'"
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        raise Unsupported(f"{distribution} is not installed; it needs {wanted}: {remedy}") from error
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < at_least:
        raise Unsupported(f"{distribution} {found} is not supported; it needs {wanted}: {remedy}")
    return found


def has_file(package: str, *path: str) -> bool:
    """Whether the installed release of a package has a file at `path` inside of it; to import it would be slow."""
    spec = find_spec(package)
    return spec is not None and Path(spec.origin or "").parent.joinpath(*path).is_file()
