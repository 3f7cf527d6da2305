"""Cases with some fields replaced, if the result is possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.errors import BadCaseError

__all__ = ["variant", "with_model"]


def variant(case: Case, **changes: Any) -> Iterator[Case]:
    """Yield the changed case unless it is impossible."""
    try:
        found = structs.replace(case, **changes)
    except BadCaseError:
        return
    yield found


def with_model(case: Case, **changes: Any) -> Iterator[Case]:
    """Yield the case with some fields of its model changed unless it is impossible."""
    yield from variant(case, model=structs.replace(case.model, **changes))
