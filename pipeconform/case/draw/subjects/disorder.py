"""Stage operations at the wrong moment: weight parts of a split backward, and other operations."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from pipeconform.adapter import placement_of
from pipeconform.case.by_hand import UNTIMELY, has_neighbour
from pipeconform.case.case import ByHand, Case, Step, Train, Zero
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _weight_part(d: Drawing, draft: Draft) -> Draft:
    mistakes: list[Literal["weight_first", "weight_twice", "weight_unknown"]]
    mistakes = ["weight_first", "weight_twice", "weight_unknown"]
    hand = ByHand(
        mistake=d.pick(mistakes),
        stage=d.pick(range(d.num_stages)),
        microbatch=d.pick(range(d.num_microbatches)),
    )
    step = structs.replace(draft.train, by_hand=hand)
    return replaced(draft, program=(step, Zero(set_to_none=True), step))


def _any(d: Drawing, draft: Draft) -> Draft:
    """Two steps by hand, each with a different operation at the wrong moment."""
    num_stages = d.num_stages
    owners = placement_of(d.claim.placement, num_ranks=d.num_ranks, num_stages=num_stages)
    placed = [min(ranks) for ranks in owners]
    possible = [
        (mistake, stages)
        for mistake in UNTIMELY
        if (stages := [s for s in range(num_stages) if has_neighbour(mistake, stage=s, placed=placed)])
    ]
    number = d.pick(range(len(possible)))

    def wrong(number: int) -> Train:
        mistake, stages = possible[number % len(possible)]
        microbatches = range(d.num_microbatches)
        hand = ByHand(whole=True, mistake=mistake, stage=d.pick(stages), microbatch=d.pick(microbatches))
        return structs.replace(draft.train, by_hand=hand)

    # the second is far from the first in the list, so that few cases cover all mistakes
    first, second = wrong(number), wrong(number + len(possible) // 2)
    return replaced(draft, program=(first, Zero(set_to_none=True), second))


def _mistakes(case: Case) -> list[str]:
    return [step.by_hand.mistake for step in case.trains if step.by_hand is not None and step.by_hand.mistake]


def _in_order(case: Case) -> Case:
    def changed(step: Step) -> Step:
        if not isinstance(step, Train) or step.by_hand is None:
            return step
        return structs.replace(step, by_hand=structs.replace(step.by_hand, mistake="", stage=0, microbatch=0))

    return structs.replace(case, program=tuple(map(changed, case.program)))


DISORDER = Subject(
    focus=Focus.DISORDER,
    needs=frozenset({Feature.STAGE_OPERATIONS}),
    trains=True,
    claimed=lambda claim, own: claim.split_backward,
    found=lambda case: any(one.startswith("weight") for one in _mistakes(case)),
    program=_weight_part,
    without=_in_order,
    control="with every operation at the right moment",
)
OUT_OF_ORDER = Subject(
    focus=Focus.OUT_OF_ORDER,
    needs=frozenset({Feature.STAGE_OPERATIONS}),
    trains=True,
    found=lambda case: any(not one.startswith("weight") for one in _mistakes(case)),
    program=_any,
    without=_in_order,
    control="with every operation at the right moment",
)
