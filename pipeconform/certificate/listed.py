"""What a certification judges: the cells of a level, and the cases of each, drawn again from seed and claims.

Nothing of a package but the claims and the name goes into it, and nothing is executed. What was judged follows from
them, since a certification begins without stored cases, searches for none beyond the drawn ones, and counts a case
once for each focus that it was drawn for; whatever is executed to make a violation small is not counted.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from pipeconform.adapter import Capabilities
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.any_case import WRAPPER_COLUMN, AnyCase
from pipeconform.case.case import Case
from pipeconform.certificate.bounds import require_bounded
from pipeconform.certificate.decision import claims_of
from pipeconform.certificate.drawing import SEED, asked_of, num_draws, sized
from pipeconform.errors import BadResultError, PipeconformError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.replication.judgement import why_not_judged
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.report.result import Implementation, Status
from pipeconform.spec import CertificationLevel, Requirement, mandatory
from pipeconform.spec.levels import batch_class
from pipeconform.wrapper import WrapperClaims, WrapperDescription

__all__ = ["Listed", "ListedCell", "listed"]


@dataclass(frozen=True, kw_only=True)
class ListedCell:
    """One requirement under one schedule, as a certification must have judged it."""

    requirement: str
    schedule: str
    variant: str = "default"
    status: Status | None = None
    """Why it is not judged: ``skipped`` or ``not_claimed``; None where it is."""
    reason: str = ""
    without: tuple[str, ...] = ()
    """Subjects of the requirement that no case is about, because they are not claimed."""
    cases: tuple[AnyCase, ...] = ()
    """In the order in which they are judged; one that several foci draw stands there several times."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it apart."""
        return self.requirement, self.schedule, self.variant

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """Of the distinct cases, in the same order."""
        return tuple(dict.fromkeys(case.digest for case in self.cases))

    @property
    def counts(self) -> dict[str, int]:
        """Judgements per number of ranks and of stages on each."""
        return dict(Counter(f"p={case.num_ranks},v={case.stages_per_rank}" for case in self.cases))

    @property
    def microbatches(self) -> dict[str, int]:
        """Judgements per number of microbatches beside that of ranks."""
        return dict(Counter(one for case in self.cases for one in _batch_classes(case)))


@dataclass(frozen=True, kw_only=True)
class Listed:
    """All cells of a level, in the order of a result, and how many cases were drawn for each."""

    cells: tuple[ListedCell, ...]
    draws: int
    max_ranks: int
    """The ranks that cases could take."""

    @functools.cached_property
    def cases(self) -> dict[str, AnyCase]:
        """By digest."""
        return {case.digest: case for cell in self.cells for case in cell.cases}

    def under(self, schedules: tuple[str, ...]) -> Listed:
        """The part about some schedules."""
        return replace(self, cells=tuple(one for one in self.cells if one.schedule in schedules))


def listed(level: CertificationLevel, implementation: Implementation, *, max_ranks: int) -> Listed:
    """The cells of a level for what an implementation says of itself, on a machine that has room for `max_ranks`.

    Raises:
        BadResultError: the claims cannot be read.
        TooLargeError: drawing from them would take too long.
    """
    said = msgspec.structs.replace(implementation, reference="", source="", source_digest="")
    try:
        return _listed(level, msgspec.json.encode(said, order="sorted"), max_ranks)
    except PipeconformError:
        raise
    except Exception as error:  # of claims that no adapter ran with, anything may go wrong
        text = f"no cases can be drawn from these claims: {type(error).__name__}: {error}"
        raise BadResultError(text) from error


@functools.lru_cache(maxsize=8)
def _listed(level: CertificationLevel, said: bytes, max_ranks: int) -> Listed:
    implementation = msgspec.json.decode(said, type=Implementation)
    if level.kind == "wrapper":
        return _of_a_wrapper(level, implementation)
    capabilities = claims_of(implementation, Capabilities)
    if capabilities is None:
        raise BadResultError("the claims of the implementation cannot be read")
    draws = num_draws(level, capabilities)
    cells = _of_a_pipeline(level, implementation, capabilities, max_ranks=max_ranks, draws=draws)
    return Listed(cells=tuple(cells), draws=draws, max_ranks=max_ranks)


def _of_a_pipeline(
    level: CertificationLevel,
    implementation: Implementation,
    capabilities: Capabilities,
    *,
    max_ranks: int,
    draws: int,
) -> Iterator[ListedCell]:
    asked = asked_of(implementation.name, capabilities, max_ranks=max_ranks, draws=draws)
    promises = bool((implementation.errors or {}).get("promises"))
    for row in mandatory(level):
        for claim in capabilities.schedules:
            reason = asked.why_not(row, claim, promises=promises)
            status, why = reason or (None, "")
            cases = () if reason else _applying(row, asked.corpora(row, claim, seed=SEED))
            yield ListedCell(
                requirement=row.id,
                schedule=claim.name,
                status=status,
                reason=why,
                without=() if reason else JUDGEMENTS[row.id].without(claim, capabilities),
                cases=tuple(cases),
            )


def _applying(row: Requirement, corpora: Iterable[Corpus]) -> Iterator[Case]:
    for corpus in corpora:
        yield from filter(JUDGEMENTS[row.id].applies, drawn(corpus))


def _of_a_wrapper(level: CertificationLevel, implementation: Implementation) -> Listed:
    claims = claims_of(implementation, WrapperClaims)
    if claims is None:
        raise BadResultError("the claims of the implementation cannot be read")
    require_bounded(claims)
    described = WrapperDescription(name=implementation.name, version=implementation.version, claims=claims)
    cells = tuple(_of_a_row(row, described, max_ranks=level.max_ranks) for row in mandatory(level))
    return Listed(cells=cells, draws=sized(None).corpus, max_ranks=level.max_ranks)


def _of_a_row(row: Requirement, described: WrapperDescription, *, max_ranks: int) -> ListedCell:
    judgement, claims = WRAPPER_JUDGEMENTS[row.id], described.claims
    if reason := why_not_judged(judgement, described):
        return ListedCell(requirement=row.id, schedule=WRAPPER_COLUMN, status="not_claimed", reason=reason)
    every = judgement.drawn(claims, seed=SEED)
    most = min(max_ranks, claims.max_ranks)
    inside = tuple(case for case in every if max(case.world_sizes) <= most)
    if not inside:
        fewest = min((case.ranks for case in every), default=1)
        reason = f"{row.id} needs {fewest} or more replicas; --ranks allows {max_ranks}"
        return ListedCell(requirement=row.id, schedule=WRAPPER_COLUMN, status="skipped", reason=reason)
    return ListedCell(requirement=row.id, schedule=WRAPPER_COLUMN, cases=inside)


def _batch_classes(case: AnyCase) -> set[str]:
    if not isinstance(case, Case):
        return set()
    return {batch_class(num_ranks=case.num_ranks, num_microbatches=run.num_microbatches) for run in case.runs}
