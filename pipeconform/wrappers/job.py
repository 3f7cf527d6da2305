"""What a rank is asked to do with a wrapper's case: apart from the doing, as `pipeconform.execute.job` is."""

from __future__ import annotations

import msgspec

from pipeconform.case.wrapper_case import WrapperCase

__all__ = ["Job"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One case for one implementation."""

    implementation: str
    case: WrapperCase
    checkpoint: bytes = b""
    """What another world saved, and this one is to load."""
