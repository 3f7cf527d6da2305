"""How many cases a certification draws: enough for every size that the level demands.

Cases are drawn at random, though from a fixed seed, so a schedule with few subjects may miss a size. The
number of draws then grows until none is missing. It follows from the claims alone: the same for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.case import Case
from pipeconform.case.strategies import Focus, Limits, reachable
from pipeconform.certificate.checks import SEED
from pipeconform.certificate.decision import lacking
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import CertificationLevel, mandatory
from pipeconform.spec.levels import batch_class

__all__ = ["num_draws"]

_FACTORS = (1, 2, 3, 4)


def num_draws(level: CertificationLevel, capabilities: Capabilities) -> int:
    """The cases to draw per subject and schedule: the level's number, or the smallest multiple that suffices.

    If none of the multiples tried does, the largest: the decision then names what is missing.
    """
    limits = Limits(capabilities=capabilities, min_ranks=1, max_ranks=level.max_ranks)
    for factor in _FACTORS:
        size = factor * level.draws
        if all(_suffices(level, claim, limits, size) for claim in capabilities.schedules):
            return size
    return _FACTORS[-1] * level.draws


def _suffices(level: CertificationLevel, claim: ScheduleClaim, limits: Limits, size: int) -> bool:
    seen: dict[str, Case] = {}
    for row in mandatory(level):
        foci = _foci(row.id, claim, limits)
        found = {case.digest: case for case in _judged(row.id, claim, limits, foci, size)}
        if foci and len(found) < level.examples:
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


def _foci(requirement: str, claim: ScheduleClaim, limits: Limits) -> tuple[Focus, ...]:
    """What one requirement draws its cases from under one schedule."""
    foci = JUDGEMENTS[requirement].foci(claim, limits.capabilities)
    return tuple(focus for focus in foci if reachable(limits, claim, focus))


def _judged(
    requirement: str, claim: ScheduleClaim, limits: Limits, foci: Iterable[Focus], size: int
) -> Iterator[Case]:
    """The cases that it would judge."""
    for focus in foci:
        for case in drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=SEED, size=size)):
            if JUDGEMENTS[requirement].applies(case):
                yield case
