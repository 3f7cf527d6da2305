"""How many cases a certification draws: enough for every size that the level demands.

Cases are drawn at random from a fixed seed, so a schedule with few subjects may miss a size. The number of draws then
grows until none is missing. It depends only on the claims, so it is the same for everyone.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.campaign.options import Options
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.case.case import Case
from pipeconform.case.focus import Limits
from pipeconform.certificate.bounds import MOST_DRAWN, require_bounded
from pipeconform.certificate.sizes import lacking
from pipeconform.errors import TooLargeError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import CertificationLevel, Profile, Requirement, mandatory

__all__ = ["PROFILE", "SEED", "num_draws", "sized"]

SEED = 0
"""The seed of every certification, so that the same cases are judged everywhere."""
PROFILE = "certify"

_FACTORS = (1, 2, 3, 4)


def sized(draws: int | None) -> Profile:
    """The profile of a certification that draws `draws` cases per subject and schedule."""
    return Options(implementation="", profile=PROFILE, examples=draws).sized()


def num_draws(level: CertificationLevel, claims: object) -> int | None:
    """The cases to draw per subject and schedule: the level's number, or the smallest multiple that suffices.

    If no multiple that is tried suffices, the largest; the decision then names what is missing. None for a wrapper's
    claims, since the standard lists the cases of its requirements.

    Raises:
        TooLargeError: the claims are too large, or too many cases would have to be drawn.
    """
    require_bounded(claims)
    if not isinstance(claims, Capabilities):
        return None
    planned = 0
    limits = Limits(capabilities=claims, min_ranks=1, max_ranks=level.max_ranks)
    for factor in _FACTORS:
        size = factor * level.draws
        target = PipelineTarget(name="", limits=limits, profile=sized(size), seed=SEED)
        planned += _num_corpora(level, target) * size
        if planned > MOST_DRAWN:
            raise TooLargeError(
                f"{planned} cases would have to be drawn to determine what level {level.title} judges for these "
                f"claims; the limit is {MOST_DRAWN}: claim fewer schedules"
            )
        if all(_suffices(level, claim, target) for claim in claims.schedules):
            return size
    return _FACTORS[-1] * level.draws


def _num_corpora(level: CertificationLevel, target: PipelineTarget) -> int:
    rows = mandatory(level)
    return sum(
        len({focus for row in rows for focus in target.foci(row, claim)}) for claim in target.claims.schedules
    )


def _suffices(level: CertificationLevel, claim: ScheduleClaim, target: PipelineTarget) -> bool:
    seen: dict[str, Case] = {}
    for row in mandatory(level):
        found = {case.digest: case for case in _judged(row, claim, target)}
        if target.foci(row, claim) and len(found) < level.examples:
            return False
        seen |= found
    return not lacking(
        level,
        claim,
        ranks={case.num_ranks for case in seen.values()},
        stages_per_rank={case.stages_per_rank for case in seen.values()},
        batches={one for case in seen.values() for one in target.batch_classes(case)},
    )


def _judged(row: Requirement, claim: ScheduleClaim, target: PipelineTarget) -> Iterator[Case]:
    """The cases that a requirement would judge."""
    for corpus in target.corpora(row, claim):
        for case in corpus.drawn():
            if JUDGEMENTS[row.id].applies(case):
                yield case
