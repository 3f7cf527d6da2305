"""Which releases of torch this version works with, checked without importing torch, and whether it can be imported.

Adapters find out by themselves what a release lacks, from torch's own signatures and operators; no other file compares
versions.
"""

from __future__ import annotations

import operator
import os
import re
from importlib import metadata

from pipeconform.errors import HarnessError, UsageError

__all__ = [
    "ALLOW_UNTESTED",
    "TESTED_TORCH",
    "describe_range",
    "import_torch",
    "is_release_range",
    "is_within",
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


def import_torch() -> None:
    """Import torch; the backends of devices that are installed beside it are loaded, too.

    Raises:
        HarnessError: it cannot be imported here; the message says why.
    """
    try:
        import torch  # noqa: F401 - takes time that not every command needs
    except Exception as error:
        why = ": ".join(str(one) for one in (error, error.__cause__) if one is not None)
        raise HarnessError(f"torch cannot be imported: {why}") from error


_BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def is_release_range(text: str) -> bool:
    """Whether this is a range of releases: ``>=2.12,<2.14``."""
    return all(map(_BOUND.fullmatch, text.split(",")))


def is_within(version: str, text: str) -> bool:
    """Whether a version is within a range of releases; nightlies and builds count as their release.

    A bound is compared as far as it goes: 2.14.1 is ``==2.14`` and not ``>2.14``.
    """
    numbers = [int(one) for one in re.findall(r"\d+", re.split(r"[^\d.]|\.dev", version)[0])]
    for one in text.split(","):
        bound = _BOUND.fullmatch(one)
        if bound is None:
            return False
        wanted = [int(number) for number in bound[2].split(".")]
        has = (numbers + [0] * len(wanted))[: len(wanted)]
        if not _COMPARE[bound[1]](has, wanted):
            return False
    return True


def _release(version: str) -> tuple[int, int] | None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))
