"""Training that goes on, in a pipeline built anew, from what the one before it has saved.

Momentum, tied weights, running statistics, float32 copies and the scale of the loss have places of their own in what is
saved. Cases take turns with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Adam, Case, Optimize, Restart, Sgd, Step, Zero
from pipeconform.case.draw.changes import in_some_stage, replaced, with_gradients_of_size
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Change, Draft, Subject
from pipeconform.case.draw.subjects import buffers, frozen, masters, shared, tied_stages, unused
from pipeconform.case.draw.worlds import alone
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

__all__ = ["RESTART"]

_UPDATES = (2, 4)
"""How many there are on either side of the restart."""


def _program(*numbers: int) -> Change:
    def program(d: Drawing, draft: Draft) -> Draft:
        zero, number = Zero(set_to_none=True), d.pick(numbers)
        update: tuple[Step, ...] = (draft.train, zero)
        if draft.optimizer is not None:
            update = (draft.train, Optimize(), zero)
        return replaced(draft, program=(*update * number, Restart(), *(update * number)[:-1]))

    return program


_SGD, _ADAM = Sgd(lr=0.0625, momentum=0.5), Adam(lr=0.015625)
"""Optimizers with a state."""


def _stepped_by(*optimizers: Sgd | Adam, contents: Change | None = None) -> Change:
    """These contents, and one of the optimizers that is claimed, if any is."""

    def change(d: Drawing, draft: Draft) -> Draft:
        draft = draft if contents is None else contents(d, draft)
        claimed = [one for one in optimizers if one is not _ADAM or "adam" in d.capabilities.optimizers]
        chosen = d.pick(claimed) if Feature.OPTIMIZER in d.features else None
        model = with_gradients_of_size(draft.model) if chosen is _ADAM else draft.model
        return replaced(draft, model=model, optimizer=chosen)

    return change


def _members() -> Iterator[Subject]:
    """Restarts of trainings that each have something else to save, and of plain ones."""
    plain = Subject(
        focus=Focus.RESTART,
        needs=frozenset({Feature.SAVING}),
        trains=True,
        contents=_stepped_by(_SGD),
        world=alone,  # what a job saves is its whole world's: engines write it over the default group
        program=_program(1, 2),
        no_control="a part of the subject, which has it",
    )
    yield plain
    # an engine that claims nothing else has both optimizers judged, too
    yield dataclasses.replace(
        plain,
        needs=plain.needs | {Feature.OPTIMIZER},
        claimed=lambda claim, own: "adam" in own.optimizers,
        contents=_stepped_by(_ADAM),
    )
    # what is given to stages of one rank, or of several, is saved once or twice
    kept = dataclasses.replace(buffers.BUFFERS, contents=in_some_stage(blocks.BatchNorm(), blocks.Counting()))
    # what is branched on could be uncertain after so many updates
    idle = dataclasses.replace(unused.UNUSED, contents=in_some_stage(blocks.Unused()))
    for other in (tied_stages.TIED_STAGES, kept, frozen.FROZEN, idle, shared.SHARED):
        # Adam would make noise of biases before a batch norm
        optimizers = (_SGD,) if other is kept else (_SGD, _ADAM)
        assert other.contents is not None
        yield dataclasses.replace(
            plain,
            needs=plain.needs | other.needs,
            claimed=other.claimed,
            squares=other.squares,
            least_stages=other.least_stages,
            contents=_stepped_by(*optimizers, contents=other.contents),
        )
    for other, numbers in ((masters.MASTERS, _UPDATES), (masters.SCALED, (1,))):
        yield dataclasses.replace(
            other,
            focus=Focus.RESTART,
            needs=plain.needs | other.needs,
            found=None,
            rarity=1,
            world=alone,
            program=_program(*numbers),
            without=None,
            control="",
            no_control=plain.no_control,
            alters="",
        )


def _without(case: Case) -> Case:
    return structs.replace(
        case, program=tuple(step for step in case.program if not isinstance(step, Restart))
    )


RESTART = Subject(
    focus=Focus.RESTART,
    needs=frozenset({Feature.SAVING}),
    trains=True,
    claimed=lambda claim, own: (
        not own.fresh_process_per_build
    ),  # the other pipeline is built in the same process
    found=lambda case: any(isinstance(step, Restart) for step in case.program),
    rarity=4,  # whatever else its cases have is there to be saved
    members=tuple(_members()),
    without=_without,
    control="without the restart",
)
