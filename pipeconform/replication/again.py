"""Judging a stored case again, of a pipeline or of a wrapper.

What `replay`, `verify --rerun`, `compare` and an exported program have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.localising import localise
from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import UsageError
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.localisation import Localisation
from pipeconform.replication.executor import WrapperExecutor
from pipeconform.report.timeline_text import timeline_lines
from pipeconform.spec import Requirement

__all__ = ["AnyExecutor", "Outcomes", "Sought", "Verdict", "judge_again", "localised", "verdict"]

AnyExecutor: TypeAlias = Executor | WrapperExecutor
Outcomes: TypeAlias = Mapping[str, tuple[Outcome, ...]]
"""By requirement what one execution showed."""

_WIDTH = 98  # columns of a picture; lines to be read are not wider anywhere else


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """The violation that a case was stored for."""

    requirement: str
    status: str
    signature: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one more execution says about a stored case."""

    kind: Literal["met", "reproduced", "another", "violated"]
    """``another`` violation than the one sought, or ``violated`` where none was sought."""
    requirements: tuple[str, ...]
    """What the case was judged by."""
    text: str
    """What is wrong, in lines; empty where nothing is."""


def judge_again(
    case: AnyCase, requirements: Iterable[Requirement], executor: AnyExecutor, *, hung: bool = False
) -> Outcomes:
    """Execute a case once on real processes and judge it in full by each requirement.

    Of what `hung` before the ranks also record who waits for whom: that proves a hang, and soon.

    Raises:
        UsageError: the executor is of a wrapper and the case of a pipeline, or the other way round.
        ContractError: the adapter broke its contract.
        HarnessError: the harness failed.
    """
    chosen = tuple(requirements)
    if isinstance(executor, WrapperExecutor) and isinstance(case, WrapperCase):
        vector = executor.execute(case)
        return {row.id: executor.outcomes(row.id, case, vector) for row in chosen}
    if isinstance(executor, WrapperExecutor) or not isinstance(case, Case):
        kind = "data-parallel wrapper" if isinstance(executor, WrapperExecutor) else "pipeline"
        names = ", ".join(row.id for row in chosen)
        raise UsageError(
            f"{executor.implementation} is a {kind}, and a case of {names} is about something else"
        )
    observe = {watched for row in chosen for watched in JUDGEMENTS[row.id].observe}
    execution = executor.execute(case, observe={*observe, *(("waits",) if hung else ())})
    return {row.id: judge(row, execution, executor) for row in chosen}


def localised(case: AnyCase, outcomes: Outcomes, executor: AnyExecutor) -> Localisation | None:
    """Where values begin to be wrong, by one more execution; None where that is not known.

    Raises:
        HarnessError: the harness failed.
    """
    if isinstance(executor, WrapperExecutor) or not isinstance(case, Case):
        return None
    return localise(case, [one for several in outcomes.values() for one in several], executor)


def verdict(outcomes: Outcomes, sought: Sought | None) -> Verdict:
    """Compare what was shown with what was sought: the same requirement, status and signature."""
    first: dict[tuple[str, str, str], Outcome] = {}
    alike: Counter[tuple[str, str, str]] = Counter()
    for name, several in outcomes.items():
        for outcome in several:
            key = (name, outcome.status.value, outcome.finding.kind)
            first.setdefault(key, outcome)
            alike[key] += 1
    kind: Literal["met", "reproduced", "another", "violated"]
    if not first:
        kind = "met"
    elif sought is None:
        kind = "violated"
    else:
        key = (sought.requirement, sought.status, sought.signature)
        kind = "reproduced" if key in first else "another"
        first = {key: first[key]} if key in first else first
    text = "\n".join(_told(key[0], one, alike[key]) for key, one in first.items())
    return Verdict(kind=kind, requirements=tuple(outcomes), text=text)


def _told(name: str, outcome: Outcome, alike: int) -> str:
    finding = outcome.finding
    where = f" ({finding.where()})" if finding.where() else ""
    message = "\n".join(f"  {line}" for line in finding.message.splitlines())
    more = f"\n  … and {alike - 1} more like it" if alike > 1 else ""
    picture = timeline_lines(outcome.timeline, first_wrong=outcome.first_wrong, width=_WIDTH)
    drawn = "".join(f"\n  {line}" for line in picture)
    return f"{name} {outcome.status}: {finding.kind}{where}\n{message}{drawn}{more}"
