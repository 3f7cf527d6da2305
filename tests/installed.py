"""Which release of an engine is installed, where a test needs one."""

from __future__ import annotations

from importlib import metadata

from pipeconform.adapters.apex import Apex
from pipeconform.adapters.zero_bubble import ZeroBubble
from pipeconform.errors import Unsupported

_CHECKOUTS = {"zero-bubble": ZeroBubble, "apex": Apex}
"""Engines that are no distribution; their adapters know the release."""


def installed_release(distribution: str) -> str | None:
    """The release of an engine that can be imported; None if it is not installed."""
    try:
        if distribution in _CHECKOUTS:
            return _CHECKOUTS[distribution]().describe().version
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, Unsupported):
        return None
