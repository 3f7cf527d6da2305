"""Replicas that are late with a computation or with their part of a reduction."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from pipeconform.case.draw.changes import changed_world, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import any_wrapper, replicated
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.case.perturbations import AnyPerturbation, Perturbation, SlowLink


def _late(d: Drawing, draft: Draft) -> Draft:
    replica = d.pick(range(len(draft.world.pipelines)))
    moments: list[Literal["before", "after"]] = ["before", "after"]
    late: AnyPerturbation
    match d.pick(["reduction", "reduction", "loss", "backward"]):
        case "reduction":
            milliseconds = d.pick([2, 10, 30])
            late = SlowLink(
                rank=d.pick(range(d.num_ranks)),
                side="reduce",
                when=d.pick(moments),
                milliseconds=milliseconds,
            )
        case "loss":
            late = Perturbation(stage=d.num_stages - 1, when="after", milliseconds=5)
        case _:
            late = Perturbation(
                stage=d.pick(range(d.num_stages)), part="backward", when=d.pick(moments), milliseconds=5
            )
    late = structs.replace(late, replica=replica)
    return replaced(draft, world=structs.replace(draft.world, perturbations=(late,)))


REPLICA_DELAYS = Subject(
    focus=Focus.REPLICA_DELAYS,
    inside=True,
    form="replicas",
    found=lambda case: bool(case.world.perturbations),
    rarity=5,
    world=replicated(any_wrapper),
    program=_late,
    without=lambda case: changed_world(case, perturbations=()),
    control="without the delay",
)
