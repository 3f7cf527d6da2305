"""``pipeconform selftest``: does this machine see implementations that are wrong?"""

from __future__ import annotations

from typing import Any

import click

from pipeconform.commands.options import device_options, names
from pipeconform.commands.say import say
from pipeconform.errors import NothingJudgedError
from pipeconform.supported import require_supported_torch

__all__ = ["selftest"]


@click.command(short_help="Try implementations that are wrong on purpose, here.")
@click.option(
    "--all", "every", is_flag=True, help="Try every fault, not one for each requirement and status."
)
@click.option(
    "--requirements",
    metavar="ID,…",
    help="Only faults of these requirements or chapters; DPW for those of wrappers.  [default: all of pipelines]",
)
@device_options
def selftest(*, every: bool, requirements: str | None, **device: Any) -> int:
    """Try implementations that are wrong on purpose, each of which must be caught by the requirement it breaks.

    A green result means little on a machine that cannot see a wrong implementation. Exit code 0: every fault
    was detected, with the status and the words that it must have; 1: some were not. Faulty data-parallel wrappers are
    tried where their requirements are named, on the CPU of this machine.
    """
    require_supported_torch()
    from pipeconform.campaign.options import Options
    from pipeconform.certificate.canaries import faults_of, one_each
    from pipeconform.commands.canaries import lines_of, watched_canaries
    from pipeconform.replication.setup import require_sense
    from pipeconform.report.canary_view import canary_table
    from pipeconform.report.console import SafeConsole
    from pipeconform.spec.selection import named_requirements, select_requirements
    from pipeconform.spec.wrappers import wrapper_chapter

    asked = names(requirements)
    wanted = sorted(named_requirements(asked) if asked else select_requirements(()))
    if {row.id for row in wrapper_chapter().requirements} & set(wanted):
        require_sense(Options(implementation="reference-wrapper", **device))
    found = faults_of(wanted)
    if not found:
        raise NothingJudgedError(f"there is no fault for {', '.join(wanted)}")
    chosen = found if every else one_each(found)
    console = SafeConsole()
    canaries = watched_canaries(
        chosen, options=Options(implementation="reference", **device), console=console
    )
    lines = lines_of(canaries)
    console.print(canary_table(lines), highlight=False)
    caught = sum(line.detected for line in lines)
    more = len(found) - len(chosen)
    say(f"{caught} of {len(lines)} faults detected" + (f"; --all tries {more} more" if more else ""))
    return int(caught < len(lines))
