"""Which releases of torch this version works with, checked without importing torch.

Adapters find out by themselves what a release lacks, from torch's own signatures and operators; no other file compares
versions.
"""

from __future__ import annotations

import os
import re
from importlib import metadata

from pipeconform.errors import UsageError

__all__ = [
    "ALLOW_UNTESTED",
    "TESTED_TORCH",
    "describe_range",
    "require_supported_torch",
    "torch_version",
    "why_unsupported",
    "why_untested",
]

TESTED_TORCH = ((2, 9), (2, 16))
"""From the first, up to but not including the second; a test compares it with pyproject.toml."""

ALLOW_UNTESTED = "PIPECONFORM_ALLOW_UNTESTED_TORCH"
"""The environment variable that lets an older torch run: ``--allow-untested-torch`` sets it to 1 for all processes."""


def describe_range() -> str:
    """The tested range as a requirement specifier: ``>=2.9,<2.16``."""
    (low, below) = (".".join(map(str, version)) for version in TESTED_TORCH)
    return f">={low},<{below}"


def torch_version() -> str | None:
    """The version of the installed torch, or None."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def why_unsupported(version: str | None) -> str | None:
    """Why this version of torch cannot be used, with the remedy; None if it can.

    An older one can if the environment variable `ALLOW_UNTESTED` is 1.
    """
    remedy = f"pip install 'torch{describe_range()}'"
    if version is None:
        return f"torch is not installed; {remedy}"
    release = _release(version)
    if release is None:
        return f"torch {version} is no release that can be compared with torch{describe_range()}; {remedy}"
    if release < TESTED_TORCH[0] and os.environ.get(ALLOW_UNTESTED) != "1":
        return (
            f"torch {version} is older than the releases that pipeconform is tested with; "
            f"{remedy}, or try --allow-untested-torch"
        )
    return None


def why_untested(version: str | None) -> str | None:
    """A warning about a version that can be used, but was not tested: another release, or a pre-release; else None."""
    release = None if version is None else _release(version)
    if release is None:
        return None
    low, below = TESTED_TORCH
    if low <= release < below and not re.search(r"\d(a|b|rc)\d|\.?dev", f"{version}".partition("+")[0]):
        return None
    return f"torch {version}: not tested with this release (tested with torch{describe_range()})"


def require_supported_torch() -> None:
    """Refuse a torch that this version cannot work with.

    Raises:
        UsageError: torch is missing, or too old.
    """
    reason = why_unsupported(torch_version())
    if reason is not None:
        raise UsageError(reason)


def _release(version: str) -> tuple[int, int] | None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))
