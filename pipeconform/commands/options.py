"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import click

from pipeconform.commands.say import say
from pipeconform.supported import ALLOW_UNTESTED, torch_version, why_unsupported, why_untested

__all__ = ["Where", "all_of", "device_options", "impl_option", "names", "show_output_option"]

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

_FORMS = "a built-in name (torch, deepspeed, megatron, reference, …), package.module:Object or path/to/file.py:Object"


class Where(TypedDict, total=False):
    """Where ranks run: the values of `device_options`."""

    device: str
    backend: str
    ranks_per_device: int


def all_of(*options: Decorator) -> Callable[[Command], Command]:
    """Combine several options into one decorator; the help lists them in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def impl_option(*, required: bool = True) -> Callable[[Command], Command]:
    """``--impl``: the implementation to judge."""
    return click.option("--impl", metavar="REF", required=required, help=f"The implementation: {_FORMS}.")


def _about_torch(context: click.Context, _: click.Parameter, allowed: bool) -> None:
    """Let an older torch run in every process of this command, and warn about an untested one."""
    before = os.environ.get(ALLOW_UNTESTED)
    if allowed and before != "1":
        os.environ[ALLOW_UNTESTED] = "1"
        context.call_on_close(lambda: _restore(before))
    version = torch_version()
    warning = why_untested(version)
    if warning is not None and why_unsupported(version) is None:
        say(f"warning: {warning}", err=True)


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(ALLOW_UNTESTED, None)
    else:
        os.environ[ALLOW_UNTESTED] = before


device_options = all_of(
    click.option(
        "--device",
        metavar="TYPE",
        default="cpu",
        show_default=True,
        help="cpu, auto (this machine's accelerator) or a torch device type such as cuda or xpu.",
    ),
    click.option(
        "--backend",
        metavar="NAME",
        default="auto",
        show_default=True,
        help="torch.distributed backend: auto, gloo, nccl, …",
    ),
    click.option(
        "--ranks-per-device",
        metavar="N",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of ranks that may share a device.",
    ),
    click.option(
        "--allow-untested-torch",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_about_torch,
        help="Try a torch that is older than the releases pipeconform is tested with.",
    ),
)
"""``--device``, ``--backend`` and ``--ranks-per-device``: where the ranks run; ``--allow-untested-torch``."""

show_output_option = click.option(
    "--show-output",
    is_flag=True,
    help="Show on standard error what ranks print, while they print it, each line after [rank0]: and so on.",
)


def names(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated list."""
    return tuple(part for part in re.split(r"[,\s]+", text or "") if part)
