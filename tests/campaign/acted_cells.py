"""A campaign in which a test says what every execution shows; cases are told apart by their seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.minimise import Smallest
from pipeconform.campaign.runner import Judged
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Model, Stage, World
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.report.result import Cell
from pipeconform.spec import Requirement, profile, requirement
from tests.case.examples import small_case

ROW = requirement("TRN-4")


def case_of(seed: int, *, ranks: int = 2) -> Case:
    """The case with this seed, on so many ranks, each with one stage."""
    return small_case(
        seed=seed,
        model=Model(width=3, stages=(Stage(blocks=(Linear(),)),) * ranks),
        world=World(size=ranks, pipeline_ranks=tuple(range(ranks))),
    )


def wrong(
    kind: str = "gradient value",
    *,
    status: Status = Status.FAILED,
    message: str = "it is wrong",
    **where: int,
) -> Outcome:
    return Outcome(status, Finding(kind=kind, message=message, **where))


class Execution(msgspec.Struct, frozen=True):
    """Which execution of which case this is, over the whole run."""

    seed: int
    nth: int


Shows = Callable[[int, int], "Iterable[Outcome] | Judged"]
"""What the n-th execution (from 1) of the case with a seed shows."""


class ActedRunner:
    """Executes nothing; ``executed`` has the seed, the requirements and whether the case hung before."""

    executions = Execution
    promises = True

    def __init__(
        self,
        shows: Shows,
        *,
        others: Mapping[str, Shows] | None = None,
        stores: bool = True,
        localises: Iterable[str] = (),
        again: int = 0,
    ) -> None:
        self.shows = {ROW.id: shows, **(others or {})}
        self.stores = stores
        self.executed: list[tuple[int, tuple[str, ...], bool]] = []
        self.judged_how: list[tuple[int, bool, bool]] = []
        """Of this requirement: the seed, whether thoroughly, and whether new processes may be compared."""
        self.times: Counter[int] = Counter()
        self.again = again
        """How often judging executes a case again."""
        self.new_processes: list[bool] = []
        self.localises = frozenset(localises)
        """The kinds of findings that are about values."""
        self.localised_cases: list[int] = []
        self.groups: tuple[tuple[str, ...], ...] = ()
        """The requirements that cannot judge the same execution as others."""

    @property
    def seeds(self) -> list[int]:
        """The executed cases, in order."""
        return [seed for seed, _, _ in self.executed]

    def own(self, case: Case) -> Case:
        return case

    def apart(self, rows: Iterable[Requirement]) -> tuple[tuple[Requirement, ...], ...]:
        rows = tuple(rows)
        alone = [tuple(row for row in rows if row.id in group) for group in self.groups]
        rest = tuple(row for row in rows if not any(row.id in group for group in self.groups))
        return tuple(filter(None, (*alone, rest)))

    def execute(self, case: Case, rows: Iterable[Requirement], *, hung: bool = False) -> Execution:
        self.executed.append((case.seed, tuple(row.id for row in rows), hung))
        self.times[case.seed] += 1
        return Execution(case.seed, self.times[case.seed])

    def stored_as(self, case: Case, rows: Iterable[Requirement]) -> str | None:
        return case.digest if self.stores else None

    def judged(
        self, row: Requirement, case: Case, execution: Execution, *, thorough: bool = True, anew: bool = True
    ) -> Judged:
        if row.id == ROW.id:
            self.judged_how.append((case.seed, thorough, anew))
        found = self.shows[row.id](execution.seed, execution.nth) if row.id in self.shows else ()
        return found if isinstance(found, Judged) else Judged(tuple(found), compared=1)

    def repetitions(self, row: Requirement, execution: Execution, *, anew: bool) -> int:
        self.new_processes.append(anew)
        return self.again

    def localised(self, case: Case, outcomes: Sequence[Outcome]) -> Any:
        self.localised_cases.append(case.seed)

    def can_localise(self, outcome: Outcome) -> bool:
        return outcome.finding.kind in self.localises


@dataclass(frozen=True)
class ActedCorpus:
    """These cases, for drawing and for the search."""

    cases: tuple[Case, ...]
    beyond: tuple[Case, ...] = ()
    """What only the search finds."""

    @property
    def size(self) -> int:
        return len(self.cases)

    def hypothesis_seed(self, purpose: str) -> int:
        return 1

    def strategy(self) -> st.SearchStrategy[Case]:
        return st.sampled_from((*self.cases, *self.beyond))

    def drawn(self) -> tuple[Case, ...]:
        return self.cases


@dataclass(frozen=True)
class ActedAsked:
    """What a test asks of a requirement."""

    corpora: tuple[ActedCorpus, ...]
    row: Requirement = ROW
    column: str = "GPipe"
    is_later: bool = False
    repeats: bool = False
    without: tuple[str, ...] = ()
    num_ranks: int = 2
    not_about: frozenset[int] = frozenset()
    """The seeds of cases that the requirement does not apply to."""
    smaller: tuple[Case, ...] = ()
    """Candidates when a case is made small; the last that shows the violation is the smallest."""
    found: tuple[tuple[str, Case], ...] = ()
    """The controls of every case but themselves."""
    explains: tuple[str, ...] = ()
    """The requirements that may explain what a control shows."""
    before: tuple[str, ...] = ()
    """The requirements that come before this one in the same case."""
    budgets: list[int] = field(default_factory=list)

    def own(self, case: Case) -> Case | None:
        return case if case.schedule == self.column else None

    def applies(self, case: Case) -> bool:
        return case.seed not in self.not_about

    def controls(self, case: Case) -> tuple[tuple[str, Case], ...]:
        return tuple(pair for pair in self.found if pair[1] != case)

    def surroundings(self, case: Case) -> None:
        return None

    def instead(self, row: Requirement) -> ActedAsked:
        return replace(self, row=row, found=(), before=())

    def explaining(self, control: Case) -> tuple[Requirement, ...]:
        return tuple(map(requirement, self.explains))

    def earlier(self, case: Case, *, controlled: bool) -> tuple[Requirement, ...]:
        return tuple(map(requirement, self.before))

    def smallest(self, corpus, case, outcome, check, *, budget) -> Smallest[Case]:
        self.budgets.append(budget.executions)
        best, executions = None, 0
        for candidate in (case, *self.smaller):
            shown = check(candidate)
            executions += 1
            if shown is not None:
                best = candidate, shown
        found, shown = best or (case, outcome)
        return Smallest(
            case=found, outcome=shown, minimal=True, confirmed=best is not None, executions=executions
        )

    def heights(self, case: Case, *, worst_ratio: float | None) -> dict[str, float]:
        return {"first": float(case.seed), "second": 2.0, "third": worst_ratio or 0.0}

    def why_nothing_was_compared(self, cases: Iterable[Case]) -> str:
        return f"nothing was compared in {len(list(cases))} cases"


@dataclass
class ActedTarget:
    asked: Any
    profile: Any
    forbidden: frozenset[int] = frozenset()
    """The seeds of stored cases that this run does not allow."""

    def ask(self, row: Requirement, column: str, *, promises: Callable[[], bool]) -> Any:
        return self.asked

    def allows(self, case: Case) -> bool:
        return case.seed not in self.forbidden

    def points(self, case: Case) -> frozenset[Any]:
        return frozenset()

    def batch_classes(self, case: Case) -> frozenset[str]:
        return frozenset({"one", "equal"}) if case.seed % 2 else frozenset({"equal"})


def asking(*seeds: int, **fields: Any) -> ActedAsked:
    """The requirement, asked on the cases with these seeds."""
    return ActedAsked((ActedCorpus(tuple(map(case_of, seeds))),), **fields)


def campaign_on(asked: Any, *runners: ActedRunner, forbidden: Iterable[int] = (), **fields: Any) -> Campaign:
    """A campaign that asks this, in as many variants as there are runners."""
    sizes = {
        name: fields.pop(name)
        for name in ("search", "shrink_cost", "cell_cost", "later_cost")
        if name in fields
    }
    sized = msgspec.structs.replace(profile("smoke"), **{"search": 0, **sizes})
    names = ("default", "strict")
    return Campaign(
        target=ActedTarget(asked, sized, frozenset(forbidden)),
        runners=dict(zip(names, runners, strict=False)),
        **fields,
    )


def only(cell: Cell) -> Any:
    """The one violation of a cell."""
    (violation,) = cell.violations
    return violation
