"""Trying an implementation that is wrong on purpose: is it caught, by which words, after how many executions?"""

from __future__ import annotations

import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from pipeconform.campaign.corpus import CaseT, Corpus, drawn
from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge, num_repetitions
from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.case.focus import REPLICATED, TENSOR_PARALLEL
from pipeconform.case.strategies import Limits
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.protocols import RankPools
from pipeconform.spec import requirement

__all__ = ["MOST_EXECUTIONS", "Fault", "Trial", "cases_of", "faults", "tried", "try_fault"]

MOST_EXECUTIONS = 200
"""Of a fault, before it counts as not detected."""

_REGISTRY = "pipeconform.reference_impl.faults"  # found by name: the product does not import the reference
_LEAST_RANKS = 2
_MOST_RANKS = 3
_MOST_WITH_SEVERAL = 4
"""Where every stage is on several ranks."""
_CASES = 12
_SEEDS = (0, 1)
"""The second where what a fault needs is not among the first's cases."""


class Fault(Protocol):
    """An implementation that is wrong on purpose, and how it shows."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def summary(self) -> str:
        """What is done wrong, in a sentence."""

    @property
    def requirement(self) -> str:
        """The requirement that it breaks."""

    @property
    def schedule(self) -> str:
        """A schedule under which it shows."""

    @property
    def expected_status(self) -> str:
        """``failed``, ``hung``, ``crashed`` or ``error``."""

    @property
    def reference(self) -> str:
        """``module:Class``, as ``--impl`` takes it."""

    @property
    def tells(self) -> str:
        """A regular expression that the finding's message matches."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one fault."""

    fault: Fault
    detected: bool
    """Whether it was caught with the expected status, by a message that tells where."""
    shown: tuple[str, ...]
    """``status: kind`` of everything that its executions showed."""
    message: str
    """What the finding that caught it says, and where it is."""
    executions: int
    seconds: float
    case: AnyCase | None = None
    """On which it was caught."""


def faults() -> Mapping[str, Fault]:
    """All faults of the reference, by name."""
    return cast("Mapping[str, Fault]", importlib.import_module(_REGISTRY).FAULTS)


def try_fault(fault: Fault, pools: RankPools) -> Trial:
    """Judge `fault` by the requirement it breaks, until it is caught or nothing is left to try.

    Raises:
        HarnessError: processes cannot be started.
    """
    begun = time.monotonic()
    description = describe(pools, fault.reference)
    pools.idle_limit = description.capabilities.patience
    executor = Executor(implementation=fault.reference, description=description, pools=pools)
    judgement, row = JUDGEMENTS[fault.requirement], requirement(fault.requirement)

    def outcomes(case: Case) -> tuple[Outcome, ...]:
        return judge(row, executor.execute(case, observe=judgement.observe), executor)

    each = 1 + judgement.repeats * num_repetitions(anew=True)
    return tried(fault, cases_of(fault, executor), outcomes, begun=begun, each=each)


def tried(
    fault: Fault,
    cases: Iterable[CaseT],
    outcomes: Callable[[CaseT], Sequence[Outcome]],
    *,
    begun: float,
    each: int = 1,
) -> Trial:
    """Judge `cases`, of `each` so many executions, until one shows what is wrong in the words that are expected.

    `begun` is when trying began, by ``time.monotonic``: preparations count.
    """
    shown: list[str] = []
    executions, message, caught = 0, "", None
    for case in cases:
        if executions + each > MOST_EXECUTIONS:
            break
        found = outcomes(case)
        executions += each
        shown += [f"{outcome.status}: {outcome.finding.kind}" for outcome in found]
        told = [one.finding for one in found if one.status.value == fault.expected_status]
        hit = next((one for one in told if re.search(fault.tells, one.message)), None)
        if hit is not None:
            where = f" ({hit.where()})" if hit.where() else ""
            message, caught = hit.message + where, case
            break
    return Trial(
        fault=fault,
        detected=caught is not None,
        shown=tuple(dict.fromkeys(shown)),
        message=message,
        executions=executions,
        seconds=round(time.monotonic() - begun, 3),
        case=caught,
    )


def cases_of(fault: Fault, executor: Executor) -> Iterator[Case]:
    """What the suite would judge the fault's requirement on."""
    capabilities = executor.capabilities
    claim = capabilities.schedule(fault.schedule)
    assert claim is not None, "a fault shows under a schedule that it claims"
    judgement = JUDGEMENTS[fault.requirement]
    for seed, focus in itertools.product(_SEEDS, judgement.foci(claim, capabilities)):
        most = _MOST_WITH_SEVERAL if focus in REPLICATED | TENSOR_PARALLEL else _MOST_RANKS
        limits = Limits(capabilities=capabilities, min_ranks=_LEAST_RANKS, max_ranks=most)
        for case in drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=seed, size=_CASES)):
            if judgement.applies(case):
                yield case
