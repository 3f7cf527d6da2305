"""How many cases a certification draws: enough for every size that the level demands.

Cases are drawn at random, though from a fixed seed, so a schedule with few subjects may miss a size. The
number of draws then grows until none is missing. It follows from the claims alone: the same for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.campaign.asked import Asked
from pipeconform.campaign.corpus import drawn
from pipeconform.campaign.options import Options
from pipeconform.case.case import Case
from pipeconform.case.focus import Limits
from pipeconform.certificate.bounds import MOST_DRAWN, require_bounded
from pipeconform.certificate.decision import lacking
from pipeconform.errors import TooLargeError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import CertificationLevel, Profile, Requirement, mandatory
from pipeconform.spec.levels import batch_class

__all__ = ["PROFILE", "SEED", "asked_of", "num_draws", "sized"]

SEED = 0
"""The seed of every certification: what is judged is the same for everybody."""
PROFILE = "certify"

_FACTORS = (1, 2, 3, 4)


def sized(draws: int | None) -> Profile:
    """The profile of a certification that draws so many cases per subject and schedule."""
    return Options(implementation="", profile=PROFILE, examples=draws).sized()


def asked_of(name: str, capabilities: Capabilities, *, max_ranks: int, draws: int) -> Asked:
    """What an implementation of this name is asked in a certification."""
    limits = Limits(capabilities=capabilities, min_ranks=1, max_ranks=max_ranks)
    return Asked(name=name, limits=limits, profile=sized(draws))


def num_draws(level: CertificationLevel, capabilities: Capabilities) -> int:
    """The cases to draw per subject and schedule: the level's number, or the smallest multiple that suffices.

    If none of the multiples tried does, the largest: the decision then names what is missing.

    Raises:
        TooLargeError: the claims are too large, or so many cases would have to be drawn that it would take too long.
    """
    require_bounded(capabilities)
    planned = 0
    for factor in _FACTORS:
        size = factor * level.draws
        asked = asked_of("", capabilities, max_ranks=level.max_ranks, draws=size)
        planned += _num_corpora(level, asked) * size
        if planned > MOST_DRAWN:
            raise TooLargeError(
                f"{planned} cases would have to be drawn to know what level {level.title} judges of these claims; "
                f"at most {MOST_DRAWN} are: claim fewer schedules"
            )
        if all(_suffices(level, claim, asked) for claim in capabilities.schedules):
            return size
    return _FACTORS[-1] * level.draws


def _num_corpora(level: CertificationLevel, asked: Asked) -> int:
    rows = mandatory(level)
    return sum(
        len({focus for row in rows for focus in asked.foci(row, claim)})
        for claim in asked.limits.capabilities.schedules
    )


def _suffices(level: CertificationLevel, claim: ScheduleClaim, asked: Asked) -> bool:
    seen: dict[str, Case] = {}
    for row in mandatory(level):
        found = {case.digest: case for case in _judged(row, claim, asked)}
        if asked.foci(row, claim) and len(found) < level.examples:
            return False
        seen |= found
    return not lacking(
        level,
        claim,
        ranks={case.num_ranks for case in seen.values()},
        stages_per_rank={case.stages_per_rank for case in seen.values()},
        batches={
            batch_class(num_ranks=case.num_ranks, num_microbatches=run.num_microbatches)
            for case in seen.values()
            for run in case.runs
        },
    )


def _judged(row: Requirement, claim: ScheduleClaim, asked: Asked) -> Iterator[Case]:
    """The cases that it would judge."""
    for corpus in asked.corpora(row, claim, seed=SEED):
        for case in drawn(corpus):
            if JUDGEMENTS[row.id].applies(case):
                yield case
