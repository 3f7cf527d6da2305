"""Which torch this version works with, checked without importing torch."""

from __future__ import annotations

import re
from importlib import metadata

from pipeconform.errors import UsageError

__all__ = ["SUPPORTED_TORCH", "describe_range", "require_supported_torch", "torch_version", "why_unsupported"]

SUPPORTED_TORCH = ((2, 13), (2, 14))
"""From the first, up to but not including the second; a test compares it with pyproject.toml."""


def describe_range() -> str:
    """The supported range as a requirement specifier: ``>=2.13,<2.14``."""
    (low, below) = (".".join(map(str, version)) for version in SUPPORTED_TORCH)
    return f">={low},<{below}"


def torch_version() -> str | None:
    """The version of the installed torch, or None."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def why_unsupported(version: str | None) -> str | None:
    """Why this version of torch cannot be used, with the remedy; None if it can."""
    remedy = f"pip install 'torch{describe_range()}'"
    if version is None:
        return f"torch is not installed; {remedy}"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    low, below = SUPPORTED_TORCH
    if numbers is not None and low <= (int(numbers[1]), int(numbers[2])) < below:
        return None
    return f"torch {version} is not supported: this version needs torch{describe_range()}; {remedy}"


def require_supported_torch() -> None:
    """Refuse a torch that this version does not support.

    Raises:
        UsageError: torch is missing or outside the supported range.
    """
    reason = why_unsupported(torch_version())
    if reason is not None:
        raise UsageError(reason)
