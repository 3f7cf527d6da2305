"""``pipeconform selftest``: check that this machine detects wrong implementations."""

from __future__ import annotations

from typing import Unpack

import click

from pipeconform.campaign.options import Options
from pipeconform.commands.options import Where, device_options, names
from pipeconform.commands.say import say
from pipeconform.errors import NothingJudgedError
from pipeconform.report.console import SafeConsole
from pipeconform.spec.selection import named_requirements, select_requirements
from pipeconform.supported import import_torch, require_supported_torch

__all__ = ["selftest"]


@click.command(short_help="Check that faulty implementations are detected on this machine.")
@click.option(
    "--all", "every", is_flag=True, help="Try every fault instead of one for each requirement and status."
)
@click.option(
    "--requirements",
    metavar="ID,…",
    help="Try only faults of these requirements or chapters.  [default: all about pipelines; DPW: about wrappers]",
)
@device_options
def selftest(*, every: bool, requirements: str | None, **where: Unpack[Where]) -> int:
    """Run implementations that are wrong on purpose; each must be detected by the requirement that it breaks.

    A green result means little on a machine that cannot detect a wrong implementation. Exit code 0: every fault was
    detected, with the expected status and message; 1: some were not. Faulty data-parallel wrappers are tried only with
    --requirements DPW (or single requirements of that chapter).
    """
    require_supported_torch()
    asked = names(requirements)
    wanted = sorted(named_requirements(asked) if asked else select_requirements(()))
    import_torch()
    from pipeconform.certificate.canaries import faults_of, one_each  # noqa: PLC0415 - imports torch
    from pipeconform.commands.canaries import canary_table, watched_canaries  # noqa: PLC0415 - imports torch

    found = faults_of(wanted)
    if not found:
        raise NothingJudgedError(f"there is no fault for {', '.join(wanted)}")
    chosen = found if every else one_each(found)
    console = SafeConsole()
    canaries = watched_canaries(chosen, options=Options(implementation="reference", **where), console=console)
    console.print(canary_table(canaries), highlight=False)
    caught = sum(canary.detected for canary in canaries)
    more = len(found) - len(chosen)
    say(f"{caught} of {len(canaries)} faults detected" + (f"; --all tries {more} more" if more else ""))
    return int(caught < len(canaries))
