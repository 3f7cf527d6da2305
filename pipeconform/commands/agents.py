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
        help="Listen there for agents (python -m pipeconform.agent) and run the ranks on them.",
    ),
    click.option(
        "--min-agents",
        metavar="N",
        type=click.IntRange(min=1),
        help="Agents without which the run stops.  [default: the largest of --ranks]",
    ),
    click.option(
        "--agent-wait",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        help="How long to wait for agents, at the start and when some are lost.  [default: 120]",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="The token that agents know, too.  [default: the variable PIPECONFORM_TOKEN]",
    ),
)
"""``--attach`` and what belongs to it: ranks on other hosts."""


def attach_from(
    *, attach: str | None, min_agents: int | None, agent_wait: float | None, token_file: Path | None
) -> Attach | None:
    """The `Attach` that the options of `attach_options` describe, by their names; None without ``--attach``.

    Raises:
        UsageError: one of them without ``--attach``, or no address.
    """
    return attach_of(attach, least=min_agents, patience=agent_wait, token_file=token_file)
