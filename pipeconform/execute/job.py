"""What a rank is asked to do with a case: apart from the doing, so that who asks need not load what does it."""

from __future__ import annotations

import msgspec

from pipeconform.case.case import Case
from pipeconform.observe.observation import Watched

__all__ = ["Job"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One case for one implementation."""

    implementation: str
    case: Case
    observe: tuple[Watched, ...] = ()
