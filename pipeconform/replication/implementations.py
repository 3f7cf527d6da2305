"""Names of the wrappers that come with pipeconform."""

from __future__ import annotations

from pipeconform.execute.implementation import WRAPPERS, resolve

__all__ = ["WRAPPERS", "resolve"]
