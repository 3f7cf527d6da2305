"""Judges a stored case again, for `replay`, `verify --rerun`, `compare` and exported programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from pipeconform.campaign.runner import Runner
from pipeconform.case.any_case import AnyCase
from pipeconform.errors import UsageError
from pipeconform.judge.outcome import Outcome
from pipeconform.observe.localisation import Localisation
from pipeconform.report.timeline_text import timeline_lines
from pipeconform.spec import Requirement

__all__ = ["Outcomes", "Sought", "Verdict", "judge_again", "localised", "verdict"]

Outcomes: TypeAlias = Mapping[str, tuple[Outcome, ...]]
"""The outcomes of one execution, by requirement id."""

_WIDTH = 98  # columns of a timeline, as wide as other text


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """The violation for which a case was stored."""

    requirement: str
    status: str
    signature: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of one more execution of a stored case."""

    kind: Literal["met", "reproduced", "another", "violated"]
    """``another``: a violation other than the one sought; ``violated``: a violation where none was sought."""
    requirements: tuple[str, ...]
    """The ids of the requirements that judged the case."""
    text: str
    """The violations, in lines of text; empty if there are none."""


def judge_again(
    case: AnyCase, requirements: Iterable[Requirement], runner: Runner[Any, Any], *, hung: bool = False
) -> Outcomes:
    """Execute a case on real processes, once if its requirements can share that, and judge it in full by each.

    If the case `hung` before, the ranks also record which rank waits for which: that proves a hang sooner.

    Raises:
        UsageError: the case belongs to another kind of implementation.
        ContractError: the adapter broke its contract.
        HarnessError: the harness failed.
    """
    rows = tuple(requirements)
    own = runner.own(case)
    if own is None:
        names = ", ".join(row.id for row in rows)
        raise UsageError(
            f"{runner.implementation} is a {runner.kind}, but a case of {names} is not for a {runner.kind}"
        )
    found: dict[str, tuple[Outcome, ...]] = {}
    for together in runner.apart(rows):
        execution = runner.execute(own, together, hung=hung)
        found.update({row.id: runner.judged(row, own, execution).outcomes for row in together})
    return {row.id: found[row.id] for row in rows}


def localised(case: AnyCase, outcomes: Outcomes, runner: Runner[Any, Any]) -> Localisation | None:
    """Where values begin to be wrong, from one more execution; None if that is not known.

    Raises:
        HarnessError: the harness failed.
    """
    return runner.localised(case, [one for several in outcomes.values() for one in several])


def verdict(outcomes: Outcomes, sought: Sought | None) -> Verdict:
    """Compare the outcomes with the violation sought: the same requirement, status and signature reproduce it."""
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
