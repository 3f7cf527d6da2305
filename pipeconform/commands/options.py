"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import click

__all__ = ["Where", "all_of", "device_options", "impl_option", "names"]

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


device_options = all_of(
    click.option(
        "--device",
        metavar="TYPE",
        default="cpu",
        show_default=True,
        help="cpu, auto (this machine's accelerator) or a torch device type such as cuda.",
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
)
"""``--device``, ``--backend`` and ``--ranks-per-device``: where the ranks run."""


def names(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated list."""
    return tuple(part for part in re.split(r"[,\s]+", text or "") if part)
