"""What a pipeline is asked: which requirements are judged under which schedules, and why the others are not.

It follows from the claims alone, so that whoever reads a result can say which cells it must have.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeconform.adapter import ScheduleClaim
from pipeconform.campaign.corpus import Corpus
from pipeconform.case.draw.claimed import reachable
from pipeconform.case.focus import Focus, Limits
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.report.result import Status
from pipeconform.spec import Profile, Requirement

__all__ = ["Asked"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The claims of one implementation, and how much a run does."""

    name: str
    """What the implementation calls itself."""
    limits: Limits
    profile: Profile
    schedules: tuple[str, ...] = ()
    """The schedules that the run is about; empty for all that are claimed."""

    def why_not(
        self, requirement: Requirement, claim: ScheduleClaim, *, promises: bool
    ) -> tuple[Status, str] | None:
        """Why a schedule is not judged by a requirement, if it is not; `promises` says whether errors are promised."""
        if not reachable(self.limits, claim):
            least, most = self.limits.min_ranks, self.limits.max_ranks
            return "skipped", f"{claim.name} claims no pipeline of {least} to {most} ranks"
        judgement = JUDGEMENTS[requirement.id]
        foci = judgement.foci(claim, self.limits.capabilities)
        if not foci:
            return "not_claimed", f"{self.name} does not claim what {requirement.id} needs under {claim.name}"
        if judgement.promised and not promises:
            return "not_claimed", f"{self.name} promises no errors, which {requirement.id} is about"
        if not any(reachable(self.limits, claim, focus) for focus in foci):
            most = self.limits.max_ranks
            return "skipped", f"{requirement.id} needs more stages than {most} ranks have under {claim.name}"
        enough = self.enough(requirement)
        if claim.name not in enough:
            independent = judgement.any_schedule
            why = "has nothing to do with the schedule" if independent else "costs much in a small run"
            return "skipped", f"{requirement.id} {why}: judged under {' and '.join(enough)}"
        return None

    def foci(self, requirement: Requirement, claim: ScheduleClaim) -> tuple[Focus, ...]:
        """What its cases are drawn from under one schedule."""
        foci = JUDGEMENTS[requirement.id].foci(claim, self.limits.capabilities)
        return tuple(focus for focus in foci if reachable(self.limits, claim, focus))

    def corpora(self, requirement: Requirement, claim: ScheduleClaim, *, seed: int) -> tuple[Corpus, ...]:
        """What a requirement is judged on under one schedule, one per focus; smaller where cases cost much."""
        size = self.profile.costly if JUDGEMENTS[requirement.id].costly else self.profile.corpus
        return tuple(
            Corpus(limits=self.limits, schedule=claim, focus=focus, seed=seed, size=size)
            for focus in self.foci(requirement, claim)
        )

    def enough(self, requirement: Requirement) -> tuple[str, ...]:
        """The schedules under which a requirement is judged: the first, or it and the last, where any would do.

        So it is where a case costs much; if it is about what the schedule does, the smallest profile alone does so.
        """
        judgement, claims = JUDGEMENTS[requirement.id], self.limits.capabilities.schedules
        names = tuple(
            claim.name
            for claim in claims
            if (not self.schedules or claim.name in self.schedules)
            and reachable(self.limits, claim)
            and judgement.foci(claim, self.limits.capabilities)
        )
        most = self.profile.schedules
        few = judgement.any_schedule or (judgement.costly and not (judgement.by_schedule and most != 1))
        if most is None or not few:
            return names
        trained = tuple(name for name in names if any(c.name == name and c.trains for c in claims)) or names
        return tuple(dict.fromkeys((*trained[:1], *trained[-1:])))[:most]
