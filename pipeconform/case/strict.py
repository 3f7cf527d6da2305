"""The base class of all parts of a case, and the defaults of their fields."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import structs

__all__ = ["Strict", "defaults_of"]


class Strict(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """An immutable struct without unknown fields, stored and printed without defaults."""


@functools.cache  # msgspec evaluates every annotation of the class, each time it is asked
def defaults_of(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The defaults of all fields in order; ``msgspec.NODEFAULT`` for those that have no single one."""
    return MappingProxyType({field.name: field.default for field in structs.fields(kind)})
