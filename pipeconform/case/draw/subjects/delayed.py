"""Delays: slow ranks, stopped ranks and slow links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from pipeconform.case.draw.changes import changed_world, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.case.perturbations import AnyPerturbation, Perturbation, PerturbationKind, SlowLink

_EVERY_TIME = (2, 5)  # milliseconds
_ONCE = (10, 30)

Kind = PerturbationKind | Literal["link"]


def perturbed(
    d: Drawing, kinds: Sequence[Kind] = ("delay", "delay", "link", "link", "stop")
) -> tuple[AnyPerturbation, ...]:
    """One or two perturbations; those that happen once happen in the program's second run, after all dry runs."""
    if d.num_ranks == 1:
        kinds = [kind for kind in kinds if kind != "link"]
    return tuple(dict.fromkeys(_one(d, d.pick(kinds)) for _ in range(d.pick([1, 1, 2]))))


def _one(d: Drawing, what: Kind) -> AnyPerturbation:
    moments: list[Literal["before", "after"]] = ["before", "after"]
    if what == "link":
        sides: list[Literal["send", "receive"]] = ["send", "receive"]
        return SlowLink(
            rank=d.pick(range(d.num_ranks)),
            side=d.pick(sides),
            when=d.pick(moments),
            milliseconds=d.pick(_EVERY_TIME),
        )
    parts: list[Literal["forward", "backward"]] = ["forward", "backward"] if d.claim.trains else ["forward"]
    every = what == "delay" and d.pick([True, False])
    return Perturbation(
        what=what,
        stage=d.pick(range(d.num_stages)),
        part=d.pick(parts),
        when=d.pick(moments),
        microbatch=None if every else d.pick(range(d.num_microbatches)),
        run=None if every else 1,
        milliseconds=0 if what in ("error", "kill") else d.pick(_EVERY_TIME if every else _ONCE),
    )


def _drawn(d: Drawing, draft: Draft) -> Draft:
    return replaced(draft, world=structs.replace(draft.world, perturbations=perturbed(d)))


DELAYED = Subject(
    focus=Focus.DELAYED,
    inside=True,
    found=lambda case: bool(case.world.perturbations),
    program=_drawn,
    without=lambda case: changed_world(case, perturbations=()),
    control="without the delays",
)
