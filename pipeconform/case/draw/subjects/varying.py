"""Runs of different sizes."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Step, Zero
from pipeconform.case.draw.changes import of_one_size, replaced, sizes_of
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import other_size
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature


def is_claimed(own: Capabilities) -> bool:
    """Whether steps of two sizes can be drawn."""
    return bool(own.features & {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES})


def of_two_sizes(d: Drawing, draft: Draft) -> Draft:
    """Draw steps of two sizes."""
    train, (count, size) = draft.train, other_size(d, draft)
    t = structs.replace(train, batch_size=count * size, num_microbatches=count)
    e = structs.replace(draft.evaluate, batch_size=count * size, num_microbatches=count)
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
    program=of_two_sizes,
    without=of_one_size,
    control="with every run of the same size as the first",
)
