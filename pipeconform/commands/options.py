"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pipeconform.attach.session import Attach

__all__ = ["attach_from", "attach_options", "device_options", "impl_option", "names"]

Command = TypeVar("Command", bound=Callable[..., Any])

_FORMS = "a built-in name (torch, deepspeed, megatron, reference, …), package.module:Object or path/to/file.py:Object"


def impl_option(*, required: bool = True) -> Callable[[Command], Command]:
    """``--impl``: the implementation to judge."""
    return click.option("--impl", metavar="REF", required=required, help=f"The implementation: {_FORMS}.")


def device_options(command: Command) -> Command:
    """``--device``, ``--backend`` and ``--ranks-per-device``: where the ranks run."""
    for option in (
        click.option(
            "--ranks-per-device",
            metavar="N",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Let N ranks share a device on purpose.",
        ),
        click.option(
            "--backend",
            metavar="NAME",
            default="auto",
            show_default=True,
            help="torch.distributed backend: auto, gloo, nccl, …",
        ),
        click.option(
            "--device",
            metavar="TYPE",
            default="cpu",
            show_default=True,
            help="cpu, auto (this machine's accelerator) or a torch device type such as cuda.",
        ),
    ):
        command = option(command)
    return command


def attach_options(command: Command) -> Command:
    """``--attach`` and what belongs to it: ranks on other hosts."""
    for option in (
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The token that agents know, too.  [default: the variable PIPECONFORM_TOKEN]",
        ),
        click.option(
            "--agent-wait",
            metavar="SECONDS",
            type=click.FloatRange(min=0),
            help="How long to wait for agents, at the start and when some are lost.  [default: 120]",
        ),
        click.option(
            "--min-agents",
            metavar="N",
            type=click.IntRange(min=1),
            help="Agents without which the run stops.  [default: the largest of --ranks]",
        ),
        click.option(
            "--attach",
            metavar="HOST:PORT",
            help="Listen there for agents (python -m pipeconform.agent) and run the ranks on them.",
        ),
    ):
        command = option(command)
    return command


def attach_from(given: Mapping[str, Any]) -> Attach | None:
    """What the options of `attach_options` came to, by their names.

    Raises:
        UsageError: one of them without ``--attach``, or no address.
    """
    from pipeconform.attach.session import attach_of

    return attach_of(
        given["attach"],
        least=given["min_agents"],
        patience=given["agent_wait"],
        token_file=given["token_file"],
    )


def names(text: str | None) -> tuple[str, ...]:
    """The parts of a list separated by commas."""
    return tuple(part for part in re.split(r"[,\s]+", text or "") if part)
