"""The runner for pipelines: executes and judges cases in the processes of one environment variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeconform.bounds.gauge import Gauge
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge, num_repetitions
from pipeconform.campaign.localising import is_numeric, localise
from pipeconform.campaign.runner import Judged
from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.unclaimed import returned_unclaimed
from pipeconform.observe.localisation import Localisation
from pipeconform.observe.observation import Watched
from pipeconform.ranks.protocols import RankPools
from pipeconform.spec import Requirement
from pipeconform.spec.wrappers import Kind

__all__ = ["PipelineRunner"]

_CHANGING = frozenset[Watched]({"loneliness", "recovery", "resumption"})
"""What is observed by doing something else: keeping connections after an error, or running once more."""


@dataclass(frozen=True)
class PipelineRunner:
    """Runs pipeline cases with an executor."""

    executor: Executor
    kind: Kind = "pipeline"

    @property
    def implementation(self) -> str:
        """The full reference of the implementation."""
        return self.executor.implementation

    @property
    def title(self) -> str:
        """The implementation's name and version."""
        return f"{self.executor.description.name} {self.executor.description.version}"

    @property
    def pools(self) -> RankPools:
        """The executor's processes."""
        return self.executor.pools

    @property
    def promises(self) -> bool:
        """Whether the implementation promises any errors under this variant."""
        return bool(self.executor.description.errors.promises)

    @property
    def executions(self) -> type[Execution]:
        """The type of an execution."""
        return Execution

    def own(self, case: AnyCase) -> Case | None:
        """The case, if it is a pipeline's."""
        return case if isinstance(case, Case) else None

    def apart(self, rows: Iterable[Requirement]) -> tuple[tuple[Requirement, ...], ...]:
        """The requirements in groups, by what their observation changes about the execution."""
        groups: dict[frozenset[Watched], list[Requirement]] = {}
        for row in rows:
            groups.setdefault(JUDGEMENTS[row.id].observe & _CHANGING, []).append(row)
        return tuple(map(tuple, groups.values()))

    def execute(self, case: Case, rows: Iterable[Requirement], *, hung: bool = False) -> Execution:
        """Execute a case, recording what the requirements observe; if it `hung` before, also who waits for whom."""
        return self.executor.execute(case, observe={*_observed(rows), *(("waits",) if hung else ())})

    def stored_as(self, case: Case, rows: Iterable[Requirement]) -> str:
        """The key of an execution: what was observed, and the case's digest."""
        return "-".join((*sorted(_observed(rows)), case.digest))

    def judged(
        self, row: Requirement, case: Case, execution: Execution, *, thorough: bool = True, anew: bool = True
    ) -> Judged:
        """Judge an execution by one requirement."""
        gauge = Gauge()
        found = judge(row, execution, self.executor, thorough=thorough, anew=anew, gauge=gauge)
        unclaimed = returned_unclaimed(self.executor.claimed_for(case), execution.shown)
        compared = gauge.compared if JUDGEMENTS[row.id].is_met_by(case) else 0
        return Judged(found, gauge.worst, compared, frozenset(one.value for one in unclaimed))

    def repetitions(self, row: Requirement, execution: Execution, *, anew: bool) -> int:
        """How often judging executed the case again: for determinism, unless the first execution ended early."""
        if not JUDGEMENTS[row.id].repeats or execution.outcome() is not None:
            return 0
        return num_repetitions(anew=anew)

    def localised(self, case: Case, outcomes: Sequence[Outcome]) -> Localisation | None:
        """Where values begin to be wrong, from one more execution that compares the boundaries of all stages."""
        return localise(case, outcomes, self.executor)

    def can_localise(self, outcome: Outcome) -> bool:
        """Whether the verdict is about values."""
        return is_numeric(outcome)


def _observed(rows: Iterable[Requirement]) -> frozenset[Watched]:
    """What several requirements observe together."""
    each = [JUDGEMENTS[row.id].observe for row in rows]
    observed = frozenset[Watched]().union(*each)
    if not all("no outputs" in one for one in each):
        observed -= {"no outputs"}  # the others compare outputs
    return observed
