"""Running canaries with something to look at, for the commands that do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from pipeconform.campaign.options import Options
from pipeconform.campaign.trial import Fault
from pipeconform.certificate.canaries import run_canaries
from pipeconform.certificate.contents import Canary
from pipeconform.report.canary_view import CanaryLine, CanaryView

__all__ = ["lines_of", "watched_canaries"]


def watched_canaries(
    chosen: Sequence[Fault], *, options: Options, console: Console, shard: str = "", run_id: str = ""
) -> tuple[Canary, ...]:
    """Run `chosen` faults; `console` shows how far it is and, at once, each that is not detected.

    Raises:
        UsageError: there are too few devices.
        HarnessError: processes cannot be started.
    """
    with CanaryView(console, total=len(chosen)) as view:
        return run_canaries(
            chosen,
            options=options,
            shard=shard,
            run_id=run_id,
            begin=lambda fault: view.begin(
                fault=fault.name, requirement=fault.requirement, summary=fault.summary
            ),
            tell=lambda canary: view.tell(*lines_of((canary,))),
        )


def lines_of(canaries: Sequence[Canary]) -> tuple[CanaryLine, ...]:
    """What is shown of canaries."""
    return tuple(
        CanaryLine(
            fault=one.fault,
            requirement=one.requirement,
            schedule=one.schedule,
            expected=one.expected,
            detected=one.detected,
            shown=one.shown,
            seconds=one.seconds,
        )
        for one in canaries
    )
