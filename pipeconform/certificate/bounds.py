"""Limits on the claims of a package, which are untrusted: the verifier draws cases from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pipeconform.adapter import Capabilities
from pipeconform.errors import TooLargeError

__all__ = ["MOST_DRAWN", "require_bounded"]

MOST_DRAWN = 100_000
"""The most cases drawn to determine what a level judges; each takes two or three milliseconds."""
_MOST_ENTRIES = 64
"""The longest list in the claims: schedules, numbers of stages per rank, features."""
_MOST_CHARACTERS = 2_000
_MOST_DEPTH = 12
_MOST_STAGES = 1_024
"""The most stages per rank."""
_MOST_MICROBATCHES = 1_024
"""The most microbatches that a schedule may need on four ranks with two stages each; all are tried one by one."""


def require_bounded(claims: object) -> None:
    """Refuse claims, of a pipeline or of a wrapper, from which drawing cases would take too long.

    Raises:
        TooLargeError: a claim is too large; the message names it, its value and what is allowed.
    """
    for text in _too_large(msgspec.to_builtins(claims), "capabilities", 0):
        raise TooLargeError(text)
    if isinstance(claims, Capabilities):
        for text in _schedules(claims):
            raise TooLargeError(text)


def _too_large(value: Any, where: str, depth: int) -> Iterator[str]:
    if depth > _MOST_DEPTH:
        yield f"{where}: deeper than {_MOST_DEPTH} levels"
    elif isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        yield f"{where}: {len(value)} characters; at most {_MOST_CHARACTERS} are allowed"
    elif isinstance(value, dict | list | tuple | set | frozenset):
        if len(value) > _MOST_ENTRIES:
            yield f"{where}: {len(value)} entries; at most {_MOST_ENTRIES} are allowed"
            return
        pairs = (
            value.items() if isinstance(value, dict) else ((index, one) for index, one in enumerate(value))
        )
        for key, one in pairs:
            yield from _too_large(one, f"{where}.{key!s:.40}", depth + 1)


def _schedules(claims: Capabilities) -> Iterator[str]:
    names = [claim.name for claim in claims.schedules]
    for claim in claims.schedules:
        where = f"capabilities.schedules: {claim.name}"
        if names.count(claim.name) > 1:
            yield f"{where} appears {names.count(claim.name)} times"
        wrong = [v for v in claim.stages_per_rank if not 1 <= v <= _MOST_STAGES]
        if wrong:
            yield f"{where}: {wrong[0]} stages per rank; between 1 and {_MOST_STAGES} are allowed"
        least = claim.least_microbatches(num_ranks=4, stages_per_rank=2)
        if least > _MOST_MICROBATCHES:
            yield (
                f"{where}: at least {least} microbatches on 4 ranks with 2 stages each; "
                f"a schedule may need {_MOST_MICROBATCHES}"
            )
