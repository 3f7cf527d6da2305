"""What an implementation's claims alone say about a level, before anything is run."""

from __future__ import annotations

import math

from pipeconform.adapter import Capabilities, ErrorContract
from pipeconform.campaign.target import NotAsked, Target
from pipeconform.certificate.decision import missing_claims, too_few_claimed, too_few_schedules
from pipeconform.errors import NothingJudgedError
from pipeconform.spec import CertificationLevel, Requirement, core_requirements, mandatory

__all__ = ["num_to_claim", "reasons_in_claims", "unclaimed"]


def reasons_in_claims(level: CertificationLevel, target: Target) -> tuple[str, ...]:
    """Why these claims cannot be granted `level`, however well they are met; empty if they can."""
    claims, few = target.claims, too_few_claimed(level, unclaimed(level, target))
    if not isinstance(claims, Capabilities):
        return tuple(few)
    return (*few, *missing_claims(level, claims), *too_few_schedules(level, claims))


def unclaimed(level: CertificationLevel, target: Target) -> tuple[str, ...]:
    """The requirements of a level that are claimed under no schedule, in the order of the standard."""
    return tuple(row.id for row in mandatory(level) if _is_unclaimed(row, target))


def num_to_claim(level: CertificationLevel, without: tuple[str, ...]) -> int:
    """How many of the requirements `without` have to be claimed at least."""
    spare = len(without) - math.floor(level.not_claimed * len(mandatory(level)))
    return max(spare, sum(name in without for name in core_requirements(level)), 0)


def _is_unclaimed(row: Requirement, target: Target) -> bool:
    errors = target.errors

    def promises() -> bool:
        return isinstance(errors, ErrorContract) and bool(errors.promises)

    try:
        asked = [target.ask(row, column, promises=promises) for column in target.columns]
    except NothingJudgedError:
        return False  # it is claimed; the run says why that is too little
    return all(isinstance(one, NotAsked) and one.status == "not_claimed" for one in asked)
