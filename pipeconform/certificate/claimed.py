"""Reading an implementation's claims from a result file, and what a certification asks of it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pipeconform.campaign.target import Target
from pipeconform.campaign.targets import CLAIMS, AnyClaims, target_claiming
from pipeconform.certificate.drawing import SEED, sized
from pipeconform.errors import UsageError
from pipeconform.reading import REFUSALS
from pipeconform.report.result import Implementation

__all__ = ["claims_of", "convertible", "target_in"]

T = TypeVar("T")


def claims_of(implementation: Implementation) -> AnyClaims | None:
    """Its claims; None if the file does not contain them in this version's form."""
    return convertible(implementation.capabilities, CLAIMS[implementation.kind])


def target_in(implementation: Implementation, *, max_ranks: int, draws: int | None) -> Target | None:
    """The target of a certification with `draws` cases on at most `max_ranks`; None if its claims cannot be read."""
    claims = claims_of(implementation)
    if claims is None:
        return None
    return target_claiming(
        claims, name=implementation.name, profile=sized(draws), ranks=(1, max_ranks), seed=SEED
    )


def convertible(said: object, kind: type[T]) -> T | None:
    """`said` as a `kind`; None if it does not have this version's form."""
    try:
        return msgspec.convert(said, kind)
    except (*REFUSALS, TypeError, UsageError):
        return None
