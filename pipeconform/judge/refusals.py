"""Judgement of how an implementation refuses a case: on which ranks, and in which words.

Whether it may refuse the case at all is the subject of other requirements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pipeconform.adapter import Capabilities, Placement, laid_out
from pipeconform.bounds.gauge import Gauge
from pipeconform.case.case import Case
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status, judge_verdicts
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, VerdictVector

__all__ = [
    "Refusal",
    "misplaced_stages_are_refused",
    "ranks_that_can_know",
    "refused_on_every_rank",
    "texts_of",
]

_PLACED = re.compile(
    r"\b(placement|places?|placed)\b|\bstages?\b.*\branks?\b|\branks?\b.*\bstages?\b",
    re.IGNORECASE | re.DOTALL,
)
"""Matches a message about stages and ranks."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How the ranks ended in a case that an implementation may, or should, refuse."""

    case: Case
    capabilities: Capabilities
    verdicts: VerdictVector
    unsupported: bool = False
    """Whether every pipeline rank answered the plan with `Unsupported`."""
    gauge: Gauge = field(default_factory=Gauge, compare=False)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the pipeline."""
        return tuple(self.case.world.pipeline_ranks)

    @property
    def raised(self) -> dict[int, Raised]:
        """The errors of the pipeline's ranks."""
        found = {rank: self.verdicts[rank] for rank in self.members}
        return {rank: one for rank, one in found.items() if isinstance(one, Raised)}

    def outcome(self, status: Status, kind: str, text: str, rank: int) -> Outcome:
        """A finding about one rank, together with how every rank ended."""
        table = self.verdicts.describe()
        return Outcome(status, Finding(kind=kind, message=f"{text}\n{table}", rank=rank), verdicts=table)


def texts_of(raised: Iterable[Raised]) -> list[str]:
    """The messages of errors, each with those of its causes."""
    return ["\n".join([one.message, *(cause.message for cause in one.causes)]) for one in raised]


def refused_on_every_rank(refusal: Refusal) -> Iterator[Outcome]:
    """Where one rank raised an error of its own, every rank of the pipeline must have done so."""
    refusal.gauge.count(len(refusal.members))
    own = [rank for rank, one in refusal.raised.items() if not one.is_echo]
    if not own:
        return
    first = refusal.verdicts[own[0]]
    assert isinstance(first, Raised)
    for rank in refusal.members:
        if rank not in own:
            text = f"rank {own[0]} raised {first.type}: {first.message.strip()}; rank {rank} raised no error of its own"
            yield refusal.outcome(Status.ERROR, "refused on some ranks only", text, rank)
            return


def ranks_that_can_know(case: Case, capabilities: Capabilities) -> tuple[int, ...]:
    """The pipeline ranks whose own stages are not those that the schedule places there.

    A loop and a V give the middle one of an odd number of ranks the same two stages: it cannot know that the others
    are misplaced.
    """
    claim = capabilities.schedule(case.schedule)
    if claim is None or not case.world.placement:
        return ()
    own, given = (
        laid_out(placement, num_ranks=case.num_ranks, num_stages=case.num_stages)
        for placement in (claim.placement, Placement(case.world.placement))
    )
    return tuple(
        rank
        for rank in range(case.num_ranks)
        if any((rank in mine) != (rank in yours) for mine, yours in zip(own, given, strict=True))
    )


def misplaced_stages_are_refused(refusal: Refusal) -> Iterator[Outcome]:
    """Every rank that can know that its stages are misplaced must raise an error about stages and ranks."""
    positions = ranks_that_can_know(refusal.case, refusal.capabilities)
    knowing = {refusal.members[position] for position in positions}
    refusal.gauge.count(len(knowing))
    if refusal.unsupported:
        return
    found = [(rank, _wrong_with(refusal, rank)) for rank in sorted(knowing)]
    wrong = [(rank, one) for rank, one in found if one is not None]
    if not wrong:
        return
    rank, (status, kind, text) = min(wrong, key=lambda pair: _HARM.index(pair[1][0]))
    ended = judge_verdicts(refusal.verdicts)
    if ended is not None and (ended.status, ended.finding.rank) == (status, rank):
        yield replace(ended, verdicts=refusal.verdicts.describe())  # it says where a rank died, or waits
    else:
        yield refusal.outcome(status, kind, text, rank)


_HARM = (Status.CRASHED, Status.HUNG, Status.FAILED, Status.ERROR)


def _wrong_with(refusal: Refusal, rank: int) -> tuple[Status, str, str] | None:
    """What is wrong with the end of a rank that can know: status, kind and text."""
    verdict = refusal.verdicts[rank]
    given = f"{refusal.case.schedule} was given its stages as a {refusal.case.world.placement}"
    match verdict:
        case Returned():
            text = f"{given} and ran on rank {rank}; expected: an error there"
            return Status.FAILED, "another placement accepted", text
        case Died():
            return Status.CRASHED, f"died: {verdict.how}", f"{given}; rank {rank} died ({verdict.how})"
        case Stuck():
            return Status.HUNG, "hang", f"{given}; rank {rank} does not end: {verdict.why}"
    told = f"rank {rank} raised {verdict.type}: {verdict.message.strip()}"
    if verdict.is_echo:
        return Status.ERROR, "refused on some ranks only", f"{given}; {told}; expected an error of its own"
    if not _PLACED.search(verdict.message):
        return Status.FAILED, "unclear refusal", f"{told}; expected a message about stages and ranks"
    return None
