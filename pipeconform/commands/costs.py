"""What computations and transfers cost, as options of a command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeconform.errors import UsageError

if TYPE_CHECKING:
    from pipeconform.schedule import Costs

__all__ = ["cost_options"]

Command = TypeVar("Command", bound=Callable[..., Any])


def cost_options(command: Command) -> Command:
    """``--forward``, ``--input``, ``--weight``, …; handed over as a function that makes the `Costs`."""

    @functools.wraps(command)
    def with_costs(
        forward: str,
        input_grad: str,
        weight_grad: str,
        pair_factor: float,
        latency: float,
        message_bytes: float,
        bandwidth: float | None,
        overlap: bool,
        **others: Any,
    ) -> Any:
        def costs() -> Costs:
            from pipeconform.schedule import Costs

            if bandwidth is None and message_bytes:
                raise UsageError("--bytes need --bandwidth: without it a link is infinitely fast")
            return Costs(
                forward=_per_stage("--forward", forward),
                input_grad=_per_stage("--input", input_grad),
                weight_grad=_per_stage("--weight", weight_grad),
                pair_factor=pair_factor,
                latency=latency,
                message_bytes=message_bytes,
                **({} if bandwidth is None else {"bandwidth": bandwidth}),
                overlap=overlap,
            )

        return command(costs=costs, **others)

    wrapped: Any = with_costs
    for option in (
        click.option("--overlap/--no-overlap", default=True, help="Whether a rank computes while it sends."),
        click.option(
            "--bandwidth", metavar="N", type=float, help="Bytes per time unit of a link.  [default: infinite]"
        ),
        click.option(
            "--bytes",
            "message_bytes",
            metavar="N",
            type=float,
            default=0.0,
            show_default=True,
            help="Size of one boundary or its gradient.",
        ),
        click.option(
            "--latency",
            metavar="T",
            type=float,
            default=0.0,
            show_default=True,
            help="Time of every transfer.",
        ),
        click.option(
            "--pair-factor",
            metavar="X",
            type=float,
            default=1.0,
            show_default=True,
            help="An overlapped pair takes the sum of its parts times X.",
        ),
        _time("--weight", "weight_grad", "Time of W; B takes I and W."),
        _time("--input", "input_grad", "Time of I."),
        _time("--forward", "forward", "Time of F, one number or one per stage: 1,1,2,1."),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _time(flag: str, name: str, text: str) -> Callable[[Any], Any]:
    return click.option(flag, name, metavar="T[,T…]", default="1", show_default=True, help=text)


def _per_stage(flag: str, text: str) -> float | tuple[float, ...]:
    try:
        times = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} {text}: expected a number, or one per stage such as 1,1,2,1") from None
    return times[0] if len(times) == 1 else times
