"""How many files a process may open: a connection is one, and a thousand is the usual limit."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["descriptor_limit", "raise_descriptor_limit"]

_WANTED = 1 << 16


def descriptor_limit() -> int:
    """The number of files that this process may have open at a time."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit(wanted: int = _WANTED) -> None:
    """Raise the limit to `wanted`, or as far as the system lets an ordinary process; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # a system may have limits that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
