"""A requirement asked of a module wrapper: the subject of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeconform.campaign.corpus import Drawable
from pipeconform.campaign.minimise import Budget, Smallest, minimise
from pipeconform.campaign.subject import Judged
from pipeconform.case.any_case import WRAPPER_COLUMN, AnyCase
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.judge.gauge import Gauge
from pipeconform.judge.outcome import Outcome
from pipeconform.observe.localisation import Localisation
from pipeconform.ranks.verdict import VerdictVector
from pipeconform.replication.drawing import Listed, Smaller, is_about
from pipeconform.report.result import Violation

if TYPE_CHECKING:
    from pipeconform.replication.campaign import WrapperCampaign

__all__ = ["WrapperCell"]


@dataclass(frozen=True, kw_only=True)
class WrapperCell:
    """Wrapper cases, executed by the campaign's processes."""

    campaign: WrapperCampaign
    requirement: str
    listed: Listed
    schedule: str = WRAPPER_COLUMN
    variant: str = "default"
    repeats: bool = False
    is_later: bool = False
    without: tuple[str, ...] = ()

    def corpora(self) -> tuple[Listed, ...]:
        """One: what is listed."""
        return (self.listed,)

    def drawn(self, corpus: Drawable[WrapperCase]) -> Iterable[WrapperCase]:
        """The listed cases."""
        return self.listed.cases

    def smallest(
        self,
        corpus: Drawable[WrapperCase],
        case: WrapperCase,
        outcome: Outcome,
        check: Callable[[WrapperCase], Outcome | None],
        *,
        budget: Budget,
    ) -> Smallest[WrapperCase]:
        """By Hypothesis, from the case and its simpler ones, wherever it was found."""
        ranks = tuple(sorted({one.ranks for one in self.listed.cases}))
        simpler = Smaller(target=case, ranks=ranks)
        return minimise(simpler, case, outcome, check, budget=budget, purpose="smaller")

    def own(self, case: AnyCase) -> WrapperCase | None:
        """A wrapper's case."""
        return case if isinstance(case, WrapperCase) else None

    def earlier(self) -> Iterator[tuple[Violation, WrapperCase]]:
        """What the run before found and this one's limits allow."""
        where = (self.requirement, self.schedule, self.variant)
        for one in self.campaign.earlier.by_cell.get(where, ()):
            case = self.own(one.case)
            if case is not None and self.campaign.allows(case):
                yield one, case

    def applies(self, case: WrapperCase) -> bool:
        """Whether the requirement's listed cases have its properties, too."""
        return is_about(case, self.listed.cases)

    def known(self, case: WrapperCase) -> VerdictVector | None:
        """Nothing: every case has values of its own."""
        return None

    def keep(self, case: WrapperCase, execution: VerdictVector) -> None:
        """Nothing is kept."""

    def execute(self, case: WrapperCase, *, hung: bool = False) -> VerdictVector:
        """On its ranks."""
        return self.campaign.execute(case)

    def judged(self, case: WrapperCase, execution: VerdictVector, *, thorough: bool, anew: bool) -> Judged:
        """By the requirement's judgement; its bounds cost nothing, so nothing is judged in haste."""
        gauge = Gauge()
        found = self.campaign.outcomes(self.requirement, case, execution, gauge=gauge)
        return Judged(found, compared=gauge.compared)

    def why_nothing_was_compared(self, cases: Iterable[WrapperCase]) -> str:
        """No requirement of wrappers needs more than its listed cases bring."""
        return "nothing was compared: the ranks showed nothing that could be held against what is right"

    def num_processes(self, case: WrapperCase) -> int:
        """A process per rank, of the larger world."""
        return max(case.world_sizes)

    def repetitions(self, case: WrapperCase, execution: VerdictVector, *, anew: bool) -> int:
        """None."""
        return 0

    def batch_classes(self, case: WrapperCase) -> Iterable[str]:
        """None: there are no microbatches."""
        return ()

    def heights(self, case: WrapperCase, judged: Judged) -> Mapping[str, float]:
        """Nothing: options are combined without a direction."""
        return {}

    def localised(self, case: WrapperCase, outcome: Outcome) -> tuple[Localisation | None, int]:
        """Not known: a replica is one piece."""
        return None, 0
