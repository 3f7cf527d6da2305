"""What the suite said of each fault, kept beside the page: judging all of them takes hours, and may go on later."""

from __future__ import annotations

import msgspec

from pipeconform.campaign.trial import Fault
from pipeconform.report.causes import causes_of
from pipeconform.report.result import Result

__all__ = ["Accused", "Verdict", "verdict_of"]


class Accused(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, as a result tells it."""

    requirements: tuple[str, ...]
    """Those that it violates, the one that tells it best first."""
    blocked: tuple[str, ...] = ()
    """Those that cannot be judged because of it."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a result says about a fault."""

    judged: str
    """When, in UTC."""
    seconds: float
    causes: tuple[Accused, ...] = ()
    failed: tuple[str, ...] = ()
    """Requirements whose cells the harness could not judge."""

    def of(self, fault: Fault) -> str:
        """``right``: the first cause accuses a requirement of the fault's label; ``other``: it does not; ``unseen``."""
        if not self.causes:
            return "unseen"
        labels = {fault.requirement, *fault.also}
        return "right" if labels & set(self.causes[0].requirements) else "other"


def verdict_of(result: Result) -> Verdict:
    """What a result says, without findings about other implementations."""
    return Verdict(
        judged=result.created,
        seconds=result.run.seconds,
        causes=tuple(
            Accused(
                requirements=tuple(dict.fromkeys((one.requirement, *one.requirements))),
                blocked=one.blocked_requirements,
            )
            for one in causes_of(result, known=())
        ),
        failed=tuple(cell.requirement for cell in result.cells if cell.is_broken),
    )
