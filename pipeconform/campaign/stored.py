"""Choosing the requirements by which a stored case is judged again."""

from __future__ import annotations

from collections.abc import Callable

from pipeconform.errors import NothingJudgedError, UsageError
from pipeconform.spec import Requirement

__all__ = ["some_of"]


def some_of(
    wanted: tuple[Requirement, ...], is_about: Callable[[Requirement], bool], *, asked: str | None
) -> tuple[Requirement, ...]:
    """Those of the `wanted` requirements that are about a case; `asked` names the only one, if it was asked for.

    Raises:
        UsageError: the one asked for is not.
        NothingJudgedError: none is.
    """
    chosen = tuple(filter(is_about, wanted))
    if chosen:
        return chosen
    if asked is not None:
        raise UsageError(
            f"{wanted[0].id} says nothing about this case, or the implementation does not claim what it needs; "
            f"leave --requirement out to judge the case by all that do"
        )
    raise NothingJudgedError("no requirement says anything about this case")
