"""Tries implementations that are wrong on purpose: are they caught, with which message, after how many executions?"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from pipeconform.campaign.describing import AnyDescription, describe, runner_of
from pipeconform.campaign.targets import target_of
from pipeconform.case.any_case import AnyCase
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.ranks.protocols import RankPools
from pipeconform.spec import profile
from pipeconform.spec.wrappers import any_requirement

__all__ = ["MOST_EXECUTIONS", "Fault", "Trial", "cases_of", "faults", "try_fault", "wrapper_faults"]

MOST_EXECUTIONS = 200
"""A fault counts as not detected after this many executions."""

_FAULTS = "pipeconform.reference_impl.faults"  # found by name: the product does not import the reference
_RANKS = (1, 4)


class Fault(Protocol):
    """An implementation that is wrong on purpose, and how the suite must catch it."""

    @property
    def name(self) -> str:
        """The fault's name."""

    @property
    def summary(self) -> str:
        """One sentence about what it does wrong."""

    @property
    def requirement(self) -> str:
        """The requirement that it breaks."""

    @property
    def also(self) -> tuple[str, ...]:
        """Requirements that it breaks as plainly."""

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
        """A regular expression that the finding's message must match."""

    @property
    def or_hangs(self) -> bool:
        """Whether a hang shows it, too, on a device, whatever the message is."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of trying one fault."""

    fault: Fault
    detected: bool
    """Whether a finding had the expected status and message, or showed it by a hang where that counts."""
    shown: tuple[str, ...]
    """``status: kind`` of every finding."""
    message: str
    """The message and the place of the finding that caught it."""
    executions: int
    seconds: float
    case: AnyCase | None = None
    """The case on which it was caught."""


def faults() -> Mapping[str, Fault]:
    """The faulty pipelines of the reference, by name."""
    return cast("Mapping[str, Fault]", importlib.import_module(_FAULTS).FAULTS)


def wrapper_faults() -> Mapping[str, Fault]:
    """The faulty wrappers of the reference, by name."""
    return cast("Mapping[str, Fault]", importlib.import_module(_FAULTS).WRAPPER_FAULTS)


def cases_of(fault: Fault, description: AnyDescription) -> Iterator[AnyCase]:
    """The cases on which to try a fault with this description."""
    target = target_of(description, profile=profile("smoke"), ranks=_RANKS)
    return target.against(fault.requirement, fault.schedule)


def try_fault(fault: Fault, pools: RankPools) -> Trial:
    """Judge `fault` by the requirement it breaks, until it is caught or nothing is left to try.

    Raises:
        HarnessError: processes cannot be started.
    """
    begun, row = time.monotonic(), any_requirement(fault.requirement)
    description = describe(pools, fault.reference)
    runner = runner_of(description, implementation=fault.reference, pools=pools)
    hangs = fault.or_hangs and pools.devices.device_type != "cpu"
    shown: list[str] = []
    executions, message, caught = 0, "", None
    for case in cases_of(fault, description):
        if executions >= MOST_EXECUTIONS:
            break
        execution = runner.execute(case, (row,))
        found = runner.judged(row, case, execution).outcomes
        executions += 1 + runner.repetitions(row, execution, anew=True)
        shown += [f"{outcome.status}: {outcome.finding.kind}" for outcome in found]
        hit = next((one.finding for one in found if _shows(one, fault, hangs=hangs)), None)
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


def _shows(outcome: Outcome, fault: Fault, *, hangs: bool) -> bool:
    if hangs and outcome.status is Status.HUNG:
        return True
    said = re.search(fault.tells, outcome.finding.message)
    return outcome.status.value == fault.expected_status and said is not None
