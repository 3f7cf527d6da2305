"""``--attach`` and the options that belong to it: ranks on other hosts."""

from __future__ import annotations

from pathlib import Path

import click

from pipeconform.attach.session import Attach, attach_of
from pipeconform.commands.options import all_of

__all__ = ["attach_from", "attach_options"]


attach_options = all_of(
    click.option(
        "--attach",
        metavar="HOST:PORT",
        help="Listen on this address for agents (python -m pipeconform.agent) and run the ranks on them.",
    ),
    click.option(
        "--on",
        metavar="ENGINE",
        help="What starts the ranks: local; slurm, in an allocation; ray, in a cluster; torchrun, on this machine.  "
        "[default: local]",
    ),
    click.option(
        "--min-agents",
        metavar="N",
        type=click.IntRange(min=1),
        help="The run stops if fewer than N agents are connected.  [default: the largest of --ranks]",
    ),
    click.option(
        "--agent-wait",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        help="How long to wait for agents, at the start and after some are lost.  [default: 120]",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File with the token that agents must know.  [default: the variable PIPECONFORM_TOKEN]",
    ),
)


def attach_from(
    *,
    attach: str | None,
    on: str | None,
    min_agents: int | None,
    agent_wait: float | None,
    token_file: Path | None,
) -> Attach | None:
    """The `Attach` that the options of `attach_options` describe; None without ``--attach``.

    Raises:
        UsageError: another of these options is given without ``--attach`` or ``--on``, or a value is invalid.
    """
    return attach_of(attach, least=min_agents, patience=agent_wait, token_file=token_file, on=on)
