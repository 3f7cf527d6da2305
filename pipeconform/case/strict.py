"""What all parts of a case have in common."""

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
    """Strict, immutable, stored and printed without what is default."""
