"""A requirement asked of a pipeline under one schedule: the subject of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeconform.adapter import ScheduleClaim
from pipeconform.campaign.corpus import Corpus, Drawable, drawn
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge, num_repetitions
from pipeconform.campaign.localising import is_numeric, localise
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.campaign.simplify import simplify
from pipeconform.campaign.subject import Judged
from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.case.simpler.scope import Scope
from pipeconform.judge.gauge import Gauge
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.registry import JUDGEMENTS, Judgement
from pipeconform.judge.unclaimed import returned_unclaimed
from pipeconform.observe.localisation import Localisation
from pipeconform.report.result import Violation
from pipeconform.spec import Requirement
from pipeconform.spec.levels import batch_class

if TYPE_CHECKING:
    from pipeconform.campaign.campaign import Campaign

__all__ = ["PipelineCell"]


@dataclass(frozen=True, kw_only=True)
class PipelineCell:
    """Pipeline cases of the requirement's foci, executed by the campaign's processes."""

    campaign: Campaign
    row: Requirement
    claim: ScheduleClaim
    variant: str
    is_later: bool = False

    @property
    def requirement(self) -> str:
        """Its id."""
        return self.row.id

    @property
    def schedule(self) -> str:
        """The schedule's name."""
        return self.claim.name

    @property
    def repeats(self) -> bool:
        """Whether a case is executed several times."""
        return self._judgement.repeats

    @property
    def _judgement(self) -> Judgement:
        return JUDGEMENTS[self.row.id]

    @property
    def _executor(self) -> Executor:
        return self.campaign.executors[self.variant]

    @property
    def without(self) -> tuple[str, ...]:
        """Foci of the requirement that are not claimed under this schedule."""
        return self._judgement.without(self.claim, self.campaign.limits.capabilities)

    def corpora(self) -> tuple[Corpus, ...]:
        """One per focus."""
        return self.campaign.asked.corpora(self.row, self.claim, seed=self.campaign.seed)

    def drawn(self, corpus: Drawable[Case]) -> Iterable[Case]:
        """Its cases."""
        assert isinstance(corpus, Corpus)
        return drawn(corpus)

    def smallest(
        self,
        corpus: Drawable[Case],
        case: Case,
        outcome: Outcome,
        check: Callable[[Case], Outcome | None],
        *,
        budget: Budget,
    ) -> Smallest[Case]:
        """By cuts of the case itself, inside what its corpus is drawn from."""
        assert isinstance(corpus, Corpus)
        scope = Scope(limits=corpus.limits, claim=corpus.schedule, focus=corpus.focus)

        def allowed(candidate: Case) -> bool:
            return self.applies(candidate) and scope.holds(candidate, origin=case)

        return simplify(case, outcome, check, allowed=allowed, budget=budget)

    def own(self, case: AnyCase) -> Case | None:
        """A pipeline's case under this schedule."""
        return case if isinstance(case, Case) and case.schedule == self.claim.name else None

    def earlier(self) -> Iterator[tuple[Violation, Case]]:
        """What the run before found and this one's limits allow."""
        where = (self.row.id, self.claim.name, self.variant)
        for one in self.campaign.earlier.of(where, self.campaign.limits):
            case = self.own(one.case)
            if case is not None:
                yield one, case

    def applies(self, case: Case) -> bool:
        """Whether the requirement says anything about it."""
        return self._judgement.applies(case)

    def known(self, case: Case) -> Execution | None:
        """From the store."""
        return self.campaign.store.get(self._stored_as(case))

    def keep(self, case: Case, execution: Execution) -> None:
        """In the store."""
        self.campaign.store.put(self._stored_as(case), execution)

    def _stored_as(self, case: Case) -> str:
        return "-".join((self.variant, *sorted(self._judgement.observe), case.digest))

    def execute(self, case: Case, *, hung: bool = False) -> Execution:
        """With what the requirement has to see; of what hung before, also who waits for whom."""
        observe = {*self._judgement.observe, *(("waits",) if hung else ())}
        return self.campaign.execute(case, self.variant, observe=observe)

    def judged(self, case: Case, execution: Execution, *, thorough: bool, anew: bool) -> Judged:
        """By the requirement's judgement."""
        gauge = Gauge()
        found = judge(self.row, execution, self._executor, thorough=thorough, anew=anew, gauge=gauge)
        unclaimed = returned_unclaimed(self._executor.capabilities, execution.shown)
        compared = gauge.compared if self._judgement.is_met_by(case) else 0
        return Judged(found, gauge.worst, compared, frozenset(one.value for one in unclaimed))

    def why_nothing_was_compared(self, cases: Iterable[Case]) -> str:
        """What the requirement's condition says, if none of the cases met it."""
        return self._judgement.why_nothing_was_compared(cases)

    def num_processes(self, case: Case) -> int:
        """The size of its world."""
        return case.world.size

    def repetitions(self, case: Case, execution: Execution, *, anew: bool) -> int:
        """Those of a requirement about determinism."""
        if not self.repeats or execution.outcome() is not None:
            return 0
        times = num_repetitions(anew=anew)
        self.campaign.count(case, times=times)
        return times

    def batch_classes(self, case: Case) -> Iterator[str]:
        """Its m beside p, of every run of the program."""
        for run in case.runs:
            yield batch_class(num_ranks=case.num_ranks, num_microbatches=run.num_microbatches)

    def heights(self, case: Case, judged: Judged) -> Mapping[str, float]:
        """Large numeric errors, and many microbatches that may be in flight."""
        most = max((run.num_microbatches for run in case.runs), default=0)
        return {"error": judged.worst_ratio or 0.0, "in flight": float(most * case.stages_per_rank)}

    def localised(self, case: Case, outcome: Outcome) -> tuple[Localisation | None, int]:
        """By one more execution, unless another requirement ended in the same case."""
        if not is_numeric(outcome):
            return None, 0
        known, key = self.campaign.localised, (self.variant, case.digest)
        if key in known:
            return known[key], 0
        self.campaign.count(case, times=1)
        known[key] = localise(case, (outcome,), self._executor)
        return known[key], 1
