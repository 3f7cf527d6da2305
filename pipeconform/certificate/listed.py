"""What a certification judges: the cells of a level, and the cases of each, drawn again from seed and claims.

Only the claims and the name are taken from a package, and nothing is executed. They determine what was judged, since a
certification begins without stored cases, searches for none beyond the drawn ones, and counts a case once for each
focus that it was drawn for; executions that make a violation smaller are not counted.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec

from pipeconform.campaign.pairs import Point
from pipeconform.campaign.target import NotAsked, Target
from pipeconform.case.any_case import AnyCase
from pipeconform.certificate.claimed import claims_of, target_in
from pipeconform.certificate.drawing import num_draws
from pipeconform.certificate.parts import part_of
from pipeconform.errors import BadResultError, NothingJudgedError, PipeconformError
from pipeconform.report.result import Implementation, Status
from pipeconform.spec import CertificationLevel, Requirement, mandatory

__all__ = ["Listed", "ListedCell", "listed"]


@dataclass(frozen=True, kw_only=True)
class ListedCell:
    """One requirement under one schedule, as a certification must have judged it."""

    requirement: str
    schedule: str
    variant: str = "default"
    status: Status | None = None
    """``skipped`` or ``not_claimed`` if it is not judged, otherwise None."""
    reason: str = ""
    without: tuple[str, ...] = ()
    """Subjects of the requirement without any case, because they are not claimed."""
    cases: tuple[AnyCase, ...] = ()
    """In the order in which they are judged; a case that is drawn for several foci appears several times."""
    microbatches: dict[str, int] = field(default_factory=dict)
    """Judgements by the number of microbatches, compared with that of ranks."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the cell."""
        return self.requirement, self.schedule, self.variant

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of the distinct cases, in the same order."""
        return tuple(dict.fromkeys(case.digest for case in self.cases))

    @property
    def counts(self) -> dict[str, int]:
        """Judgements per number of ranks and of stages on each."""
        return dict(Counter(f"p={case.num_ranks},v={case.stages_per_rank}" for case in self.cases))


@dataclass(frozen=True, kw_only=True)
class Listed:
    """All cells of a level, in the order of a result, for one implementation."""

    cells: tuple[ListedCell, ...]
    target: Target
    """What the cells were drawn from."""

    @property
    def draws(self) -> int:
        """The number of cases drawn for each cell and subject."""
        return self.target.profile.corpus

    @functools.cached_property
    def cases(self) -> dict[str, AnyCase]:
        """All cases, by digest."""
        return {case.digest: case for cell in self.cells for case in cell.cases}

    @functools.cached_property
    def points(self) -> tuple[frozenset[Point], frozenset[Point]]:
        """The combinations of properties in the cases, and all that cases could have."""
        reached = frozenset(point for case in self.cases.values() for point in self.target.points(case))
        return reached, self.target.reachable(dict.fromkeys(cell.schedule for cell in self.cells))

    def under(self, schedules: tuple[str, ...]) -> Listed:
        """The cells under some schedules."""
        return replace(self, cells=tuple(one for one in self.cells if one.schedule in schedules))

    def shard(self, number: int, total: int) -> Listed:
        """Part `number` of `total`.

        Raises:
            UsageError: there are more parts than schedules or requirements.
        """
        every = tuple(dict.fromkeys(one.requirement for one in self.cells))
        rows, columns = part_of(self.target, every, number=number, total=total)
        part = self.under(columns) if columns else self
        return replace(part, cells=tuple(one for one in part.cells if one.requirement in rows))


def listed(level: CertificationLevel, implementation: Implementation, *, max_ranks: int) -> Listed:
    """The cells of a level for an implementation's claims, on a machine that has room for `max_ranks`.

    Raises:
        BadResultError: the claims cannot be read.
        TooLargeError: drawing from them would take too long.
    """
    said = msgspec.structs.replace(implementation, reference="", source="", source_digest="")
    try:
        return _listed(level, msgspec.json.encode(said, order="sorted"), max_ranks)
    except NothingJudgedError as error:
        raise BadResultError(f"no cases can be drawn from these claims: {error}") from error
    except PipeconformError:
        raise
    except Exception as error:  # the claims may be forged, so anything can go wrong
        text = f"no cases can be drawn from these claims: {type(error).__name__}: {error}"
        raise BadResultError(text) from error


@functools.lru_cache(maxsize=8)
def _listed(level: CertificationLevel, said: bytes, max_ranks: int) -> Listed:
    implementation = msgspec.json.decode(said, type=Implementation)
    target = target_in(implementation, max_ranks=max_ranks, draws=num_draws(level, claims_of(implementation)))
    if target is None:
        raise BadResultError("the claims of the implementation cannot be read")
    promises = bool((implementation.errors or {}).get("promises"))
    cells = tuple(
        _cell(target, row, column, promises=promises) for row in mandatory(level) for column in target.columns
    )
    return Listed(cells=cells, target=target)


def _cell(target: Target, row: Requirement, column: str, *, promises: bool) -> ListedCell:
    asked = target.ask(row, column, promises=lambda: promises)
    if isinstance(asked, NotAsked):
        return ListedCell(requirement=row.id, schedule=column, status=asked.status, reason=asked.reason)
    cases = [case for corpus in asked.corpora for case in corpus.drawn() if asked.applies(case)]
    return ListedCell(
        requirement=row.id,
        schedule=column,
        without=tuple(asked.without),
        cases=tuple(cases),
        microbatches=dict(Counter(one for case in cases for one in target.batch_classes(case))),
    )
