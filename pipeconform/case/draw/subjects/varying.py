"""Runs of different sizes."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Eval, Step, Train, Zero
from pipeconform.case.draw.changes import of_one_size, replaced, sizes_of
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import other_size
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature


def is_claimed(own: Capabilities) -> bool:
    """Whether steps of two sizes can be drawn."""
    return bool(own.features & {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES})


def of_another_size(d: Drawing, draft: Draft) -> tuple[Train, Eval]:
    """A training step and an evaluation, both of another size than the draft's."""
    count, size = other_size(d, draft)
    return (
        structs.replace(draft.train, batch_size=count * size, num_microbatches=count),
        structs.replace(draft.evaluate, batch_size=count * size, num_microbatches=count),
    )


def _program(d: Drawing, draft: Draft) -> Draft:
    """Draw steps of two sizes."""
    train, (t, e) = draft.train, of_another_size(d, draft)
    if not d.claim.trains:
        return replaced(draft, program=(draft.evaluate, e))
    z = Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(train, z, t), (train, z, t, z, train)]
    if Feature.EVAL in d.features and d.claim.evaluates:
        programs += [(train, e, z, train), (e, train, z, t)]
    return replaced(draft, program=d.pick(programs))


VARYING = Subject(
    focus=Focus.VARYING,
    claimed=lambda claim, own: is_claimed(own),
    found=lambda case: len(sizes_of(case)) > 1,
    program=_program,
    without=of_one_size,
    control="with every run of the same size as the first",
)
