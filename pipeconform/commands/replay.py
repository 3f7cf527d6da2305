"""``pipeconform replay``: execute a stored case again and report whether it still fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeconform.commands.agents import attach_from, attach_options
from pipeconform.commands.debugging import debugger_of, require_debuggable
from pipeconform.commands.exporting import export
from pipeconform.commands.options import device_options, impl_option, show_output_option
from pipeconform.commands.say import say
from pipeconform.commands.stored import Stored, read_stored
from pipeconform.errors import UsageError
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.supported import import_torch, require_supported_torch

if TYPE_CHECKING:
    from pipeconform.campaign.again import Outcomes
    from pipeconform.spec import Requirement

__all__ = ["heading", "replay", "verdict"]


@click.command(short_help="Execute a stored case again and judge it.")
@click.argument("stored", metavar="CASE.json|ID")
@impl_option()
@click.option(
    "--result",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=DEFAULT_RESULT,
    show_default=True,
    help="The result file that contains the violation ID.",
)
@click.option(
    "--requirement", metavar="ID", help="Judge by this requirement.  [default: every one that applies]"
)
@click.option(
    "--script",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Instead of executing the case, write a program that does so without pipeconform.",
)
@click.option(
    "--pdb",
    "debugged",
    metavar="RANK",
    type=click.IntRange(min=0),
    help="Open Python's debugger on this rank where it raises, and at every breakpoint(); the other ranks wait.",
)
@show_output_option
@device_options
@attach_options
def replay(
    *,
    stored: str,
    impl: str,
    result: Path,
    requirement: str | None,
    script: Path | None,
    debugged: int | None,
    show_output: bool,
    device: str,
    backend: str,
    ranks_per_device: int,
    **agents: Any,
) -> int:
    """Execute a stored case in fresh processes (with --attach, on the agents' hosts) and judge it.

    The case is a JSON file, or the ID of a violation in a result file. Prints REPRODUCED (exit code 1), FIXED (0), or
    that the case shows another violation (1). With --script nothing is executed: a program is written that
    shows the violation without pipeconform being installed, in plain torch for torch's own pipelining if possible; else
    the adapter, and an archive beside it that judges the case in the same way.
    """
    require_supported_torch()
    attach = attach_from(**agents)
    if attach is not None and script is not None:
        raise UsageError("--script executes nothing, so there is nothing for --attach to do")
    if show_output and script is not None:
        raise UsageError("--script executes nothing, so there is no output for --show-output")
    if debugged is not None:
        require_debuggable(attached=attach is not None, executes=script is None)
    if script is not None and script.suffix != ".py":
        raise UsageError(f"--script {script}: expected a name that ends in .py")
    found = read_stored(stored, result=result)
    from pipeconform.execute.implementation import resolve

    resolve(impl)
    import_torch()
    from pipeconform.campaign.again import judge_again, localised
    from pipeconform.campaign.options import Options
    from pipeconform.campaign.setup import campaign_of
    from pipeconform.case.any_case import world_sizes
    from pipeconform.report.localisation_text import localisation_lines

    sizes = world_sizes(found.case)
    if debugged is not None and debugged >= max(sizes):
        raise UsageError(f"--pdb {debugged}: the case has ranks 0 to {max(sizes) - 1}")
    options = Options(
        implementation=impl,
        ranks=(min(sizes), max(sizes)),
        device=device,
        backend=backend,
        ranks_per_device=ranks_per_device,
        attach=attach,
        show_output=show_output,
    )
    with debugger_of(debugged) as debugger, campaign_of(replace(options, debugger=debugger)) as campaign:
        chosen = campaign.judged_by(found.case, name=found.name, asked=requirement, stored=found.requirement)
        if script is not None:
            return export(found, chosen, campaign, options=options, script=script)
        runner = campaign.runner(found.variant)
        say(heading(found, runner.title, chosen))
        outcomes = judge_again(found.case, chosen, runner, hung=found.hung)
        localisation = None if debugger else localised(found.case, outcomes, runner)
    text, code = verdict(found, outcomes)
    say(text)
    for line in localisation_lines(localisation, said=text):
        say(line)
    return code


def heading(found: Stored, title: str, chosen: tuple[Requirement, ...]) -> str:
    """The implementation, called `title`, the requirements it is judged by, and the case."""
    from pipeconform.report.case_text import describe_case

    names = ", ".join(row.id for row in chosen)
    case = "\n".join(f"  {line}" for line in describe_case(found.case).splitlines())
    return f"{title}, {found.name}, judged by {names}:\n{case}\n"


def verdict(found: Stored, outcomes: Outcomes) -> tuple[str, int]:
    """The text to print for the outcomes, and the exit code."""
    from pipeconform.campaign import again

    said = again.verdict(outcomes, found.sought)
    match said.kind:
        case "met":
            return f"FIXED: {', '.join(said.requirements)} met", 0
        case "another":
            assert found.sought is not None
            word = f"NOT REPRODUCED ({found.sought.signature}), but the case shows another violation:"
        case "violated":
            word = "VIOLATED:"
        case "reproduced":
            word = "REPRODUCED:"
    return f"{word}\n{said.text}", 1
