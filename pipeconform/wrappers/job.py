"""The job of a rank with a wrapper case, apart from the code that runs it, like `pipeconform.execute.job`."""

from __future__ import annotations

import msgspec

from pipeconform.case.wrapper_case import WrapperCase

__all__ = ["Job"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One case for one implementation."""

    implementation: str
    case: WrapperCase
    checkpoint: bytes = b""
    """What another world saved and this one must load."""
    coverage: str = ""
    """The folder in which the rank records what it executes of the implementation; empty if it does not."""
