"""A case with some of its fields replaced, where that is a case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.errors import BadCaseError

__all__ = ["variant", "with_model"]


def variant(case: Case, **changes: Any) -> Iterator[Case]:
    """The changed case; none where it contradicts itself."""
    try:
        found = structs.replace(case, **changes)
    except BadCaseError:
        return
    yield found


def with_model(case: Case, **changes: Any) -> Iterator[Case]:
    """The case with some fields of its model changed; none where it contradicts itself."""
    yield from variant(case, model=structs.replace(case.model, **changes))
