"""The outcome of one check of `pipeconform doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "State"]

State = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check, and what to do about it if it is not good."""

    name: str
    state: State
    text: str
    remedy: str = ""
