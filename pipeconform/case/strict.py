"""The base class of all parts of a case."""

from __future__ import annotations

import msgspec

__all__ = ["Strict"]


class Strict(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """An immutable struct without unknown fields, stored and printed without defaults."""
