"""The order to run a case, apart from the worker, so that the controller need not load torch."""

from __future__ import annotations

import msgspec

from pipeconform.case.case import Case
from pipeconform.observe.observation import Watched

__all__ = ["Job"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One case for one implementation."""

    implementation: str
    described: bytes
    """What the implementation told the controller of itself (`pipeconform.execute.described.encoded`)."""
    case: Case
    observe: tuple[Watched, ...] = ()
    coverage: str = ""
    """The folder in which the rank records what it executes of the implementation; empty if it does not."""
