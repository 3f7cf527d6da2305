"""The options that say what computations and transfers cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from pipeconform.commands.options import all_of
from pipeconform.errors import UsageError
from pipeconform.schedule import Costs

__all__ = ["cost_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


def cost_options(command: Command) -> Command:
    """Add ``--forward``, ``--input``, ``--weight``, …; the command is given a `Costs`."""

    @functools.wraps(command)
    def with_costs(**given: Any) -> Any:
        named = {field.name: given.pop(field.name) for field in fields(Costs)}
        if named["message_bytes"] and math.isinf(named["bandwidth"]):
            raise UsageError("--bytes need --bandwidth: without it a link is infinitely fast")
        return command(costs=Costs(**named), **given)

    wrapped: Any = _OPTIONS(with_costs)
    return wrapped  # type: ignore[no-any-return]


def _per_stage(context: click.Context, parameter: click.Parameter, text: str) -> float | tuple[float, ...]:
    """Click's callback for a time: one number, or one per stage."""
    try:
        times = tuple(float(word) for word in text.split(","))
    except ValueError:
        flag = parameter.opts[0]
        raise UsageError(f"{flag} {text}: expected a number, or one per stage such as 1,1,2,1") from None
    return times[0] if len(times) == 1 else times


def _time(flag: str, name: str, text: str) -> Callable[[Any], Any]:
    return click.option(
        flag, name, metavar="T[,T…]", default="1", show_default=True, callback=_per_stage, help=text
    )


def _number(flag: str, name: str, metavar: str, default: float, text: str) -> Callable[[Any], Any]:
    return click.option(
        flag, name, metavar=metavar, type=float, default=default, show_default=True, help=text
    )


_OPTIONS = all_of(
    _time("--forward", "forward", "Time of a forward (F): one number, or one per stage such as 1,1,2,1."),
    _time("--input", "input_grad", "Time of an input-gradient backward (I)."),
    _time("--weight", "weight_grad", "Time of a weight-gradient backward (W); a full backward takes I + W."),
    _number(
        "--pair-factor",
        "pair_factor",
        "X",
        1.0,
        "An overlapped forward and backward take the sum of their times, times X.",
    ),
    _number("--latency", "latency", "T", 0.0, "Time of every transfer."),
    _number("--bytes", "message_bytes", "N", 0.0, "Size of a message between two stages."),
    click.option(
        "--bandwidth",
        metavar="N",
        type=float,
        default=math.inf,
        help="Bytes per time unit that a link carries.  [default: infinite]",
    ),
    click.option("--overlap/--no-overlap", default=True, help="Whether a rank computes while it sends."),
)
