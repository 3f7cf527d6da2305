"""Drawing what befalls the ranks of a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.perturbations import AnyPerturbation, Misfortune, Perturbation, SlowLink

__all__ = ["disturbed"]

_EVERY_TIME = (2, 5)  # milliseconds
_ONCE = (10, 30)


def disturbed(
    d: Drawing,
    *,
    num_ranks: int,
    num_stages: int,
    num_microbatches: int,
    kinds: Sequence[Misfortune | Literal["link"]] = ("delay", "delay", "link", "link", "stop"),
) -> tuple[AnyPerturbation, ...]:
    """One perturbation or two; what happens once happens in the program's second run, past all dry runs."""
    if num_ranks == 1:
        kinds = [kind for kind in kinds if kind != "link"]
    drawn = [
        _one(d, d.pick(kinds), num_ranks=num_ranks, num_stages=num_stages, num_microbatches=num_microbatches)
        for _ in range(d.pick([1, 1, 2]))
    ]
    return tuple(dict.fromkeys(drawn))


def _one(
    d: Drawing,
    what: Misfortune | Literal["link"],
    *,
    num_ranks: int,
    num_stages: int,
    num_microbatches: int,
) -> AnyPerturbation:
    moments: list[Literal["before", "after"]] = ["before", "after"]
    if what == "link":
        sides: list[Literal["send", "receive"]] = ["send", "receive"]
        return SlowLink(
            rank=d.pick(range(num_ranks)),
            side=d.pick(sides),
            when=d.pick(moments),
            milliseconds=d.pick(_EVERY_TIME),
        )
    parts: list[Literal["forward", "backward"]] = ["forward", "backward"] if d.claim.trains else ["forward"]
    every = what == "delay" and d.pick([True, False])
    return Perturbation(
        what=what,
        stage=d.pick(range(num_stages)),
        part=d.pick(parts),
        when=d.pick(moments),
        microbatch=None if every else d.pick(range(num_microbatches)),
        run=None if every else 1,
        milliseconds=0 if what in ("error", "kill") else d.pick(_EVERY_TIME if every else _ONCE),
    )
