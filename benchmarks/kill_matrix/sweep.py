"""Judging one implementation by every requirement, on a fixed list of cases, until something is wrong.

A mutant has no label: nobody knows which requirement it breaks, if any. The list is drawn from the reference's
claims, so that every mutant meets the same cases, and the reference itself meets them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeconform.adapter import Capabilities
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge, num_repetitions
from pipeconform.case.case import Case
from pipeconform.case.strategies import Focus, Limits, reachable
from pipeconform.errors import BadAdapterError, ContractError
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Watched
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

__all__ = ["SCHEDULES", "Killed", "Question", "Sweep", "nearest_first", "questions", "sweep"]

SCHEDULES = ("1F1B", "ZB-H1", "ZBVZeroBubble", "Interleaved1F1B", "InterleavedZeroBubble")
"""Whole and split backward, one stage per rank and several, a loop and a V."""
_RANKS = (2, 3)
_DRAWN = (
    6  # cases per focus and schedule; where the schedule does not matter, as many times there are schedules
)
_TIME_LIMIT = 30.0  # seconds per case: an endless loop makes progress as far as anybody can see
_CHEAP: frozenset[Watched] = frozenset({"timeline", "memory"})


@dataclass(frozen=True, kw_only=True)
class Question:
    """One case, what the ranks must record, and the requirements that judge it."""

    case: Case
    focus: Focus
    observe: frozenset[Watched]
    requirements: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Killed:
    """The first thing that was wrong."""

    requirement: str
    status: str
    kind: str
    message: str
    case: Case | None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What became of one implementation."""

    killed: Killed | None
    executions: int


def questions(capabilities: Capabilities) -> tuple[tuple[Question, ...], ...]:
    """Fixed lists, of about 300 questions each: one case of every focus under every schedule, then another.

    What has nothing to do with the schedule is asked under the first of them, in as many cases.
    """
    by_round: dict[int, list[Question]] = {}
    for name in SCHEDULES:
        for focus in Focus:
            asked = _of_focus(name, focus, capabilities)
            for position, found in enumerate(asked):
                by_round.setdefault(position, []).extend(found)
    return tuple(tuple(by_round[position]) for position in sorted(by_round))


def _of_focus(name: str, focus: Focus, capabilities: Capabilities) -> list[list[Question]]:
    claim = capabilities.schedule(name)
    assert claim is not None, f"the reference claims {name}"
    rows = [
        identifier
        for identifier, judgement in JUDGEMENTS.items()
        if focus in judgement.foci(claim, capabilities)
        and (name == SCHEDULES[0] or not judgement.any_schedule)
    ]
    if not rows:
        return []
    limits = Limits(capabilities=capabilities, min_ranks=_RANKS[0], max_ranks=_RANKS[1])
    if not reachable(limits, claim, focus):
        return []  # it needs more ranks
    each = len(SCHEDULES) if all(JUDGEMENTS[identifier].any_schedule for identifier in rows) else 1
    cases = drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=0, size=_DRAWN * each))
    return [
        [question for case in cases[at : at + each] for question in _about(case, focus, rows)]
        for at in range(0, len(cases), each)
    ]


def _about(case: Case, focus: Focus, rows: Iterable[str]) -> Iterator[Question]:
    """One execution for all that look at no more than values, times and counts; one for each other kind."""
    together: dict[frozenset[Watched], list[str]] = {}
    for identifier in rows:
        judgement = JUDGEMENTS[identifier]
        if judgement.applies(case):
            extra = judgement.observe - _CHEAP
            together.setdefault(extra, []).append(identifier)
    for extra, some in together.items():
        wanted = frozenset(w for identifier in some for w in JUDGEMENTS[identifier].observe)
        yield Question(case=case, focus=focus, observe=wanted | extra, requirements=tuple(some))


def nearest_first(asked: Iterable[Question], foci: frozenset[Focus]) -> tuple[Question, ...]:
    """The same questions, those about `foci` first."""
    return tuple(sorted(asked, key=lambda question: question.focus not in foci))


def sweep(implementation: str, asked: Iterable[Question], pools: Pools) -> Sweep:
    """Ask until something is wrong, on new processes: what another implementation left there is gone.

    Raises:
        BadAdapterError: it cannot even describe itself.
    """
    for size in pools.sizes:
        pools.of_size(size).restart()
    description = describe(pools, implementation)
    executor = Executor(
        implementation=implementation, description=description, pools=pools, time_limit=_TIME_LIMIT
    )
    executions = 0
    for question in asked:
        found, spent = _wrong(executor, question)
        executions += spent
        if found is not None:
            return Sweep(killed=found, executions=executions)
    return Sweep(killed=None, executions=executions)


def _wrong(executor: Executor, question: Question) -> tuple[Killed | None, int]:
    spent = 1
    try:
        execution = executor.execute(question.case, observe=question.observe)
        for identifier in question.requirements:
            outcomes = judge(requirement(identifier), execution, executor)
            spent += JUDGEMENTS[identifier].repeats * num_repetitions(anew=True)
            if outcomes:
                return _killed(identifier, outcomes[0], question.case), spent
    except (ContractError, BadAdapterError) as error:
        kind = f"{type(error).__name__}"
        message = str(error)
        first = question.requirements[0]
        return Killed(
            requirement=first, status="error", kind=kind, message=message, case=question.case
        ), spent
    return None, spent


def _killed(identifier: str, outcome: Outcome, case: Case) -> Killed:
    where = f" ({outcome.finding.where()})" if outcome.finding.where() else ""
    return Killed(
        requirement=identifier,
        status=outcome.status.value,
        kind=outcome.finding.kind,
        message=outcome.finding.message + where,
        case=case,
    )
